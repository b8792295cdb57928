"""Run tests with each TensorFlow and Keras that is supported, and print a table of what ran.

    python tests/support/versions.py [NAME ...] [--write]

Each environment is made by `scripts/setup` where it is not there. `--write` puts the table into docs/tests.md. The
exit code is 1 where a test fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tests.md"
BEGIN, END = "<!-- versions: begin -->", "<!-- versions: end -->"

KERAS_2 = ("tests/features/keras2/test_keras2.py",)
SMOKE = ("-m", "smoke")


class Kind(NamedTuple):
    """An environment.

    Attributes:
        setup: arguments of scripts/setup.
        folder: where that makes it.
        tests: arguments of pytest.
        tensorflow: the release, where scripts/setup is to be told.
    """

    setup: tuple[str, ...]
    folder: str
    tests: tuple[str, ...]
    tensorflow: str = ""


KINDS = {
    "newest": Kind((), ".venv", SMOKE),
    "oldest": Kind(("--oldest",), ".venv-oldest", SMOKE),
    **{f"keras-{one}": Kind(("--keras", one), f".venv-keras-{one}", SMOKE) for one in ("3.6", "3.9", "3.12")},
    "nightly": Kind(("--nightly",), ".venv-nightly", SMOKE),
    "tf_keras": Kind((), ".venv", KERAS_2),
    "tf_keras-oldest": Kind(("--oldest",), ".venv-oldest", KERAS_2),
    "2.15": Kind(("--keras2",), ".venv-keras2", KERAS_2),
    "2.14": Kind(("--keras2",), ".venv-keras2-2.14.1", KERAS_2, "2.14.1"),
    "2.13": Kind(("--keras2",), ".venv-keras2-2.13.1", KERAS_2, "2.13.1"),
}

#: Says what an environment has, in the order of the table's columns.
ASK = """
import importlib.metadata, platform, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
name = next(name for name in ("tf_keras", "nightly", "keras") if name in [*sys.argv[1:], "keras"])
name = "keras-nightly" if name == "nightly" else name
keras = f"{name} {version(name)}"
from mpi4py import MPI
library = " ".join(MPI.Get_library_version().split(",")[0].split()[:3])
print("|".join([version("tensorflow-cpu"), keras, platform.python_version(), version("numpy"), library]))
"""


def row(name: str) -> tuple[str, bool]:
    """A line of the table, and whether all tests passed."""
    kind = KINDS[name]
    environ = {**os.environ, **({"TENSORFLOW": kind.tensorflow} if kind.tensorflow else {})}
    subprocess.run(["scripts/setup", *kind.setup], cwd=ROOT, env=environ, check=True, stdout=sys.stderr)
    python = str(ROOT / kind.folder / "bin" / "python")
    asked = subprocess.run(
        [python, "-c", ASK, name.partition("-")[0]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    command = [python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *kind.tests]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    last = (
        re.sub(r" in .*", "", tried.stdout.strip().splitlines()[-1].strip("= ")) if tried.stdout.strip() else "nothing"
    )
    if tried.returncode:
        print(tried.stdout[-4000:], tried.stderr[-2000:], sep="\n", file=sys.stderr)
    tests = " ".join(kind.tests)
    cells = [*asked.stdout.strip().splitlines()[-1].split("|"), f"`{tests}`", re.sub(r", \d+ deselected", "", last)]
    return "| " + " | ".join(cells) + " |", tried.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", choices=[*KINDS, []], help=f"of {', '.join(KINDS)}; all where none is named"
    )
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    lines = ["| TensorFlow | Keras | Python | NumPy | MPI | tests | |", "|---|---|---|---|---|---|---|"]
    good = True
    print(*lines, sep="\n", flush=True)
    for name in options.names or KINDS:
        line, passed = row(name)
        good = good and passed
        lines.append(line)
        print(line, flush=True)
    if options.write:
        text = PAGE.read_text()
        begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
        PAGE.write_text(text[:begin] + "\n" + "\n".join(lines) + "\n" + text[end:])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
