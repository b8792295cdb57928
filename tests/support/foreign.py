"""A directory full of a user's files, some of them named as those of checkpoints are, which no job may touch."""

from __future__ import annotations

import os
from pathlib import Path

_FILES = (
    "thesis.txt",
    ".hidden",
    "theirs.draft",
    ".fit-0001.done.draft",
    "fit-0001.done",
    "job.seed",
    "job.lock",
    "sub/deep.txt",
    ".matex-checkpoints/notes.txt",
    ".matex-checkpoints/another/fit-0001.done",
    ".matex-checkpoints/script/notes.txt",
    ".matex-checkpoints/script/theirs.draft",
    ".matex-checkpoints/script/fit-0001.done.bak",
    ".matex-checkpoints/script/seed",
    ".matex-checkpoints/script/sub/deep.txt",
)


def fill(folder: Path) -> dict[str, str]:
    """Make such a directory; returns what `found` finds there."""
    for name in _FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"what {name} says")
    (folder / "empty").mkdir()
    os.symlink("thesis.txt", folder / "link")
    os.symlink("../../thesis.txt", folder / ".matex-checkpoints" / "script" / "link")
    for path in (folder / ".matex-checkpoints", *(folder / ".matex-checkpoints").glob("*/")):
        if path.is_dir():
            path.chmod(0o755)
    return found(folder)


def found(folder: Path) -> dict[str, str]:
    """What is in a directory: files with what they hold, links with what they lead to, empty directories."""
    result = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            result[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            result[name] = path.read_text(errors="replace")
        elif not any(path.iterdir()):
            result[name] = "empty"
    return result
