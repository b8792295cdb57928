"""Packages that write files by ways of their own, on one process and on ranks that have layers: a table.

    python tests/support/layer_packages.py [-n 3] [--only NAME] [--users 0,1234] [--place DIRECTORY]

Each script runs twice on one process, so that it is known what a run repeats, and once on ranks. What it finds must be
the same on every rank, and so must the files below the working directory, HOME and TMPDIR: byte for byte, or up to the
rounding of numbers, where one process repeats that; else up to all numbers and names that chance draws.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jobs import LAUNCHER, Job
from layer_writes import MEETING, missing
from package_scripts import MODEL, TRAINS

#: For another user, in mounts of its own, where nobody else may read this Python: what hides it is put out of the way.
READABLE = """
if [ -n "$2" ]; then
    mount --bind "$1" "$3" && mount -t tmpfs -o mode=755 none "$2" && mkdir -p "$1" && mount --bind "$3" "$1" || exit 1
fi
shift 3
exec "$@"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", default="3", help="ranks")
    parser.add_argument("--only", default="", help="parts of the names of those to run: mlflow,optuna")
    parser.add_argument("--users", default=str(os.geteuid()), help="numbers of the users who run the ranks: 0,1234")
    parser.add_argument("--together", type=int, default=1, help="how many to run in one script, one after the other")
    parser.add_argument("--place", default=tempfile.gettempdir(), help="a directory on the file system to try")
    parser.add_argument("--options", default="", help="for matex-tf run, such as '--files once'")
    parser.add_argument("--seconds", type=int, default=600, help="for each job")
    asked = parser.parse_args()
    users = [int(user) for user in asked.users.split(",")]
    system = subprocess.getoutput(f"stat -f -c %T {asked.place}")
    print(f"{asked.n} ranks on {system} {asked.options}\n\n| what |" + "".join(f" user {user} |" for user in users))
    print("|---|" + "---|" * len(users))
    for name in (names := [name for name in TRAINS if any(part in name for part in asked.only.split(","))]):
        if gone := missing(TRAINS[name][0]):
            print(f"| {name} | {gone[0]} is not installed |")
    there, bad = [name for name in names if not missing(TRAINS[name][0])], 0
    for first in range(0, len(there), asked.together):
        for name, told in _told(there[first : first + asked.together], users, asked).items():
            bad += any("differ" in each or "fail" in each for each in told)
            print(f"| {name} | {' | '.join(told)} |", flush=True)
    print(f"\n{bad} of {len(there)} differ")
    return bool(bad)


def _told(names: Sequence[str], users: Sequence[int], asked: argparse.Namespace) -> dict[str, list[str]]:
    """Of each script, what there is to say of each user."""
    text = MODEL + "import os\nsaid, here = {}, os.getcwd()\n"
    for number, name in enumerate(names):
        body = textwrap.indent(textwrap.dedent(TRAINS[name][1]), "    ")
        text += f"os.mkdir('{number}'), os.chdir('{number}')\ntry:\n{body}\n    said[{name!r}] = result\n"
        text += f"except Exception as error:\n    said[{name!r}] = 'fails: ' + repr(error)\nos.chdir(here)\n"
    text += "import meeting\nsaid['layers'] = meeting.layers()\nmeeting.say(said)\n"
    ranks = [LAUNCHER, "run", "-n", asked.n, *asked.options.split()]
    told: dict[str, list[str]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="matex-packages-", dir=asked.place) as place:
        os.chmod(place, 0o755)
        try:
            (one, files), (_, again) = (_run(Path(place), text, [sys.executable]) for _ in range(2))
        except AssertionError as error:
            return dict.fromkeys(names, [f"fails on one process: {' '.join(str(error).split())[-700:]}"])
        for user in users:
            try:
                found, after = _run(Path(place), text, ranks, user, asked.seconds)
            except AssertionError as error:
                for each in told.values():
                    each.append(f"fails: {' '.join(str(error).split())[-700:]}")
                continue
            layers = "" if all(each["layers"] for each in found) else " (no layers)"
            for number, name in enumerate(names):
                wanted, got = one[0][name], [each[name] for each in found]
                same = all(each == wanted for each in got) and not str(wanted).startswith("fails: ")
                results = "same result" if same else f"results differ: {wanted}, {got}"
                told[name].append(f"{results}{layers}; {compare(*(each[number] for each in (files, again, after)))}")
            if elsewhere := compare(*(each[None] for each in (files, again, after))):
                told[names[-1]][-1] += f"; below HOME and TMPDIR: {elsewhere}"
    return told


def _run(
    place: Path, text: str, line: Sequence[str], user: int = os.geteuid(), seconds: int = 600
) -> tuple[list[Any], Any]:
    """What each rank finds; the files by part of the script, None for those elsewhere. Each job has the same empty
    directories."""
    folders = {each: place / each for each in ("work", "home", "tmp", "script", "elsewhere")}
    for folder in folders.values():
        folder.mkdir()
    (folders["elsewhere"] / "meeting.py").write_text(MEETING)
    (folders["script"] / "script.py").write_text(text)
    before: list[str] = []
    if user != os.geteuid():
        for path in (place, *place.rglob("*")):
            os.chown(path, user, user)
        before = as_user(user)
    environ = {"HOME": str(folders["home"]), "PYTHONPATH": str(folders["elsewhere"]), "GIT_PYTHON_REFRESH": "quiet"}
    environ |= {"TMPDIR": str(folders["tmp"]), "USER": "user", "LOGNAME": "user"}
    job = Job([*before, *line, str(folders["script"] / "script.py")], folders["work"], **environ)
    try:
        ended = job.end(seconds)
        assert ended.code == 0, f"code {ended.code}: {ended.err}"
        (folders["work"] / "tmp").rmdir()  # which Job makes
        shutil.rmtree(folders["home"] / ".local" / "state" / "matex_tf", ignore_errors=True)
        found: dict[int | None, dict[str, list[bytes]]] = defaultdict(lambda: defaultdict(list))
        for each in ("work", "home", "tmp"):
            for path in sorted(folders[each].rglob("*")):
                if path.name.startswith("__autograph_generated_file"):  # TensorFlow leaves them, and ranks do not
                    continue
                if path.is_symlink():
                    content = os.readlink(path).encode()
                elif path.is_file():
                    content = path.read_bytes()
                else:
                    continue
                parts = path.relative_to(place).parts
                found[int(parts[1]) if each == "work" else None][general("/".join(parts))].append(content)
        return json.loads(ended.out.splitlines()[-1]), found
    finally:
        for folder in folders.values():
            shutil.rmtree(folder)


def as_user(user: int) -> list[str]:
    """What runs a command as another user, who can read this Python."""
    python = sys.base_prefix
    above = [str(path) for path in reversed(Path(python).parents) if not path.stat().st_mode & 1]
    spare = tempfile.mkdtemp(prefix="matex-python-")
    command = ["unshare", "-m", "sh", "-c", READABLE, "sh", python, above[0] if above else "", spare]
    return [*command, "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


def general(text: str) -> str:
    """A text without what the clock and chance have put into it."""
    named = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|-[a-z0-9]{8}(?=[/.]|$)|tmp\w{8}|_[A-Za-z0-9]{22}\b"
    drawn = rf"{named}|[0-9a-f]{{16,}}|\b[0-9a-f]{{6,}}\b"
    return re.sub(rf"\d+\.\d+(e[-+]?\d+)?|{drawn}|\d+", "N", text)


def _numbers_rounded(content: bytes) -> Any:
    if content.startswith(b"\x89HDF"):
        return _arrays(content)
    return re.sub(rb"\d+\.\d+(e[-+]?\d+)?", lambda found: b"%.3g" % float(found[0]), content)


def _but_for_numbers(content: bytes) -> Any:
    if content.startswith(b"SQLite format 3"):
        with tempfile.NamedTemporaryFile(suffix=".db") as file:
            file.write(content), file.flush()
            base = sqlite3.connect(file.name)
            return sorted(map(_statement, base.iterdump()))
    if content[8:12] and b"brain.Event" in content[:64]:
        return len(content)
    return general(content.decode("latin1"))


def _statement(line: str) -> Any:
    """Of a database; clauses of a table are in any order, as SQLAlchemy writes them in the order of a set."""
    parts = re.split(r",\s", general(line)) if line.startswith("CREATE TABLE") else [general(line)]
    return sorted(part.strip("\n\t );") for part in parts)


def _arrays(content: bytes) -> Any:
    import h5py
    import numpy as np

    found: list[Any] = []

    def add(name: str, each: Any) -> None:
        if isinstance(each, h5py.Dataset):
            array = np.asarray(each[()])
            found.append((name, np.round(array, 4).tolist() if array.dtype.kind == "f" else str(array)))

    with h5py.File(io.BytesIO(content)) as file:
        file.visititems(add)
    return found


#: From the finest to the coarsest: how files are compared.
VIEWS: dict[str, Callable[[bytes], Any]] = {
    "byte for byte": bytes,
    "up to rounding": _numbers_rounded,
    "up to numbers and drawn names": _but_for_numbers,
    "by name": lambda content: None,
}


def compare(files: Any, again: Any, after: Any) -> str:
    """How many files are the same, and how far; or which ones differ more than rounding and than one run does."""
    counts, bad = Counter[str](), []
    for name in sorted({*files, *after}):
        if len(files.get(name, ())) != len(after.get(name, ())):
            bad.append(f"{name} ({len(files.get(name, ()))}, on ranks {len(after.get(name, ()))})")
            continue
        repeated = _finest(files[name], again.get(name, []))
        reached = _finest(files[name], after[name])
        if reached > max(repeated, 1):
            bad.append(f"{name} ({[*VIEWS][reached]}, one run {[*VIEWS][repeated]})")
        counts[[*VIEWS][reached]] += len(files[name])
    said = ", ".join(f"{counts[view]} {view}" for view in VIEWS if counts[view])
    return said + ("; differ: " + ", ".join(bad[:12]) if bad else "")


def _finest(one: list[bytes], other: list[bytes]) -> int:
    """The first view in which files of one name are the same."""
    for number, view in enumerate(VIEWS.values()):
        if sorted(map(repr, map(view, one))) == sorted(map(repr, map(view, other))):
            return number
    return len(VIEWS) - 1


if __name__ == "__main__":
    sys.exit(main())
