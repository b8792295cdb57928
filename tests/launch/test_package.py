"""The wheel where there is no checkout, and recipes that must name what setup.py names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"


def required() -> list[str]:
    """What setup.py installs with the package."""
    text = (ROOT / "setup.py").read_text()
    return re.findall(r'"([^"]+)"', re.search(r"install_requires=\[(.*?)\]", text)[1])


@pytest.mark.variants(0)
@pytest.mark.timeout(900)
def test_wheel():
    """Built, installed into a clean environment, and the tutorial is trained there, on one process and on two ranks."""
    python = os.path.realpath(sys.executable)  # of no environment
    line = [ROOT / "scripts" / "try_package", "--wheel", python]
    done = subprocess.run(line, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "No broken requirements found" in done.stdout
        and "the same answer on one process and on two ranks" in done.stdout
    )


def test_version_stands_in_one_place():
    """And every recipe takes it from there, or from the package."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "matex_tf" / "__init__.py").read_text())[1]
    for path in [ROOT / "setup.py", ROOT / "pyproject.toml", *PACKAGING.rglob("*.*"), PACKAGING / "Dockerfile"]:
        if path.is_file():
            assert f'"{version}"' not in path.read_text() and f"matex_tf {version}" not in path.read_text(), path


def test_conda_recipe():
    """It requires what setup.py requires."""
    recipe = (PACKAGING / "conda" / "meta.yaml").read_text()
    run = re.findall(r"^    - (\S.*)$", recipe.partition("  run:\n")[2].partition("\ntest:")[0], re.MULTILINE)
    for requirement in required():
        assert re.sub(r"(>=|==)", r" \1", requirement) in run, requirement


def test_containers():
    """Both recipes install with the same commands."""
    docker, apptainer = (PACKAGING / "Dockerfile").read_text(), (PACKAGING / "matex_tf.def").read_text()
    commands = [line.removeprefix("RUN ") for line in docker.splitlines() if line.startswith("RUN ")]
    of_pods = [line for line in commands if "openssh-server" in line]  # which Apptainer does not start
    commands = [line for line in commands if line not in of_pods]
    assert len(commands) == 2 and len(of_pods) == 1
    for command in commands:
        assert command.replace("${EXTRAS}", "cpu,mpi,data") in apptainer, command
