"""Libraries that write files by ways of their own, on one process and on three ranks with layers: the same files.

One script runs all of them, each in a directory of its own; twice on one process, so that it is known which files a run
repeats. `tests/support/layer_packages.py` runs packages that are not installed here, and larger scripts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from jobs import LAUNCHER, Job
from layer_writes import MEETING, WRITES, general, missing

from matex_tf.layer import kernel

pytestmark = pytest.mark.timeout(200)

SCRIPT = """
import json, os, sys
from meeting import meet
said = {}
"""


def script(names):
    parts = [SCRIPT]
    for name in names:
        packages, text = WRITES[name]
        if not missing(packages):
            body = textwrap.indent(textwrap.dedent(text).strip(), "    ")
            parts.append(
                f"os.chdir({name!r})\ntry:\n{body}\n    said[{name!r}] = result\n"
                f"except Exception as error:\n    said[{name!r}] = repr(error)\nmeet()\nos.chdir('..')\n"
            )
    return "".join([*parts, "import meeting\nmeeting.say(said)\n"])


def run(folder, *line, names=WRITES):
    """What each rank says, and the bytes of the files of each part."""
    (folder / "script").mkdir()
    (folder / "elsewhere").mkdir()
    for name in names:
        (folder / name).mkdir()
    (folder / "elsewhere" / "meeting.py").write_text(MEETING)
    (folder / "script" / "script.py").write_text(script(names))
    job = Job([*line, "script/script.py"], folder, PYTHONPATH=str(folder / "elsewhere")).end(150)
    assert job.code == 0, job.err
    found: dict[str, dict[str, bytes]] = {}
    for name in names:
        place = folder / name
        paths = [path for path in place.rglob("*") if not path.is_dir() or path.is_symlink()]
        found[name] = {str(path.relative_to(place)): path.read_bytes() for path in paths if path.is_file()}
    shutil.rmtree(folder)
    folder.mkdir()
    return json.loads(job.out.splitlines()[-1]), found, job.err


@pytest.fixture(scope="module")
def runs():
    """Two runs of one process, and one of three ranks."""
    asked = kernel_refuses()
    if asked:
        pytest.skip(f"no mount namespace here: {asked}")
    with tempfile.TemporaryDirectory(prefix="matex-layers-test-") as place:
        one = [run(Path(place), sys.executable) for _ in range(2)]
        yield *one, run(Path(place), LAUNCHER, "run", "-n", "3")


def kernel_refuses():
    """Why there can be no layers; asked in another process, which has one thread."""
    asked = [sys.executable, "-c", f"from {kernel.__name__} import leave_mounts; leave_mounts()"]
    done = subprocess.run(asked, capture_output=True, text=True)
    return done.stderr[-200:] if done.returncode else ""


@pytest.mark.parametrize("name", WRITES)
def test_same_files(runs, name):
    """Every rank finds what one process finds; files have the names, and where a run repeats them, the bytes."""
    if gone := missing(WRITES[name][0]):
        pytest.skip(f"the package {gone[0]} is not installed")
    (one, files, _), (_, again, _), (three, after, said) = runs
    assert "no private layers" not in said
    assert three[0][name] == three[1][name] == three[2][name] == one[0][name]
    assert Counter(map(general, after[name])) == Counter(map(general, files[name]))
    repeated = {path: text for path, text in files[name].items() if again[name].get(path) == text}
    assert {path: after[name].get(path) for path in repeated} == repeated


#: What libraries open by a path (`files.handles.stores`), which is right without layers too.
STORES = ("shelve", "sqlite3", "netCDF4", "h5py", "HDFStore", "zarr")


@pytest.fixture(scope="module")
def once():
    """A run of one process, and one of three ranks without layers."""
    with tempfile.TemporaryDirectory(prefix="matex-layers-test-") as place:
        one = run(Path(place), sys.executable, names=STORES)
        yield one, run(Path(place), LAUNCHER, "run", "-n", "3", "--files", "once", names=STORES)


@pytest.mark.parametrize("name", STORES)
def test_stores_of_libraries_without_layers(once, name):
    """Every rank finds what one process finds, and what is written is written once."""
    if gone := missing(WRITES[name][0]):
        pytest.skip(f"the package {gone[0]} is not installed")
    (one, files, _), (three, after, said) = once
    assert "own call" not in said
    assert three[0][name] == three[1][name] == three[2][name] == one[0][name]
    assert sorted(after[name]) == sorted(files[name])
