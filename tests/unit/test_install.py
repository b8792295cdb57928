"""scripts/install.py: uv gets what pip's configuration says."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from matex_tf.cli.checks import bytecode
from scripts import install

LISTED = """\
:env:.find-links='/wheels /more'
global.extra-index-url='https://one.example/simple https://two.example/simple'
global.index-url='https://mirror.example/simple'
global.timeout='60'
user.index-url='https://own.example/simple'
global.require-virtualenv='true'
"""


def test_environ():
    """Names and forms that uv knows; the innermost of pip's places wins, and what was said to uv itself stands."""
    found = install.environ(LISTED, {"PATH": "/bin", "UV_HTTP_TIMEOUT": "5"})
    assert found == {
        "PATH": "/bin",
        "UV_HTTP_TIMEOUT": "5",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_DEFAULT_INDEX": "https://own.example/simple",
    }


def test_nothing_is_configured():
    """Without a configuration the variables are those of this process."""
    assert install.environ("", {"PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize("uv", [True, False])
def test_what_is_installed_is_compiled(monkeypatch, uv):
    """By uv and by pip, also where PYTHONDONTWRITEBYTECODE is set."""
    commands = []

    def run(command, **_):
        commands.append(command)
        return types.SimpleNamespace(returncode=0, stdout="")

    monkeypatch.setattr(install, "has_uv", lambda: uv)
    monkeypatch.setattr(subprocess, "run", run)
    assert install.main(["numpy"]) == 0
    assert ("--compile-bytecode" if uv else "--compile") in commands[-1] and "numpy" in commands[-1]


def test_this_environment_is_compiled():
    """`scripts/setup` has done so: no process of the tests compiles TensorFlow."""
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ and not sys.dont_write_bytecode
    assert all(bytecode.is_compiled(folder) for name in ("tensorflow", "keras") for folder in bytecode.folders(name))


def test_images_are_compiled():
    """The recipes of containers say so to pip."""
    for name in ("Dockerfile", "matex_tf.def"):
        recipe = (Path(install.__file__).parents[1] / "packaging" / name).read_text()
        assert "--compile" in next(line for line in recipe.splitlines() if "pip install" in line)


@pytest.mark.parametrize("why", ["", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"])
def test_doctor_sees_what_is_not_compiled(monkeypatch, tmp_path, why):
    """A package without bytecode, which no process will write: a line, and what to do."""
    for place in range(20):
        (tmp_path / f"m{place}.py").write_text("")
    monkeypatch.setattr(bytecode, "folders", lambda name: [tmp_path] if name == "keras" else [])
    monkeypatch.setattr(bytecode.sys, "dont_write_bytecode", why == "PYTHONDONTWRITEBYTECODE")
    monkeypatch.setattr(bytecode.os, "access", lambda *_: why != "PYTHONPYCACHEPREFIX")
    (finding,) = bytecode.findings()
    assert finding.state == ("check" if why else "ok") and "keras" in finding.found
    assert why in finding.advice and (f"compileall -q {tmp_path}" in finding.advice) == bool(why)
    subprocess.run([bytecode.sys.executable, "-m", "compileall", "-q", str(tmp_path)], check=True)
    assert bytecode.findings()[0].found == "compiled"
