"""Scripts that change files and start programs, run by every rank as `matex-tf run` runs a script."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from matex_tf.core import world
from matex_tf.patches.common import active_flag
from matex_tf.patches.files import callers
from matex_tf.patches.files.handles import opened


def script(tmp, text, late=None, modules=(), before="", **named):
    """Run a script; what it calls `result`, and what is in its folder once all ranks have ended it.

    Args:
        text: of the script. It has a function `slow()`, in which the rank `late` sleeps, `meet()`, and its rank as
            `number`.
        late: a rank.
        before: what one rank runs first, to make what the script finds.
        modules: names and texts of modules in its folder.
        named: more names that the script has.
    """
    ranks = world.current()
    path = os.path.join(tmp, "script.py")
    if ranks.rank == 0 or active_flag.layers().on:
        for name, content in (("script", text), *modules):
            Path(tmp, f"{name}.py").parent.mkdir(exist_ok=True)
            Path(tmp, f"{name}.py").write_text(content)
        exec(before, {})
    ranks.barrier("begin the script")
    given = {"__name__": "__main__", "__file__": path, "slow": lambda: time.sleep(0.2 * (ranks.rank == late))}
    given |= {"number": ranks.rank, "meet": ranks.barrier, **named}
    callers.use(path)
    sys.path.insert(0, str(tmp))
    try:
        exec(compile(text, path, "exec"), given)
    finally:
        callers.use("")
        sys.path.remove(str(tmp))
        for name, _ in modules:
            sys.modules.pop(name, None)
    given.get("end", lambda: None)()
    ranks.barrier("end the script")
    found = tree(tmp)
    ranks.barrier("remove what is there")
    return given.get("result"), found


def with_memory_maps(tmp, text, largest_copy):
    """`script`, with memory maps copied up to so many bytes."""
    before, opened.LARGEST_COPY = opened.LARGEST_COPY, largest_copy
    try:
        return script(tmp, text)
    finally:
        opened.LARGEST_COPY = before


def tree(folder):
    """The files of a folder: names and contents, of archives and databases the names alone."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and path.suffix not in (".zip", ".tar", ".gz", ".tgz", ".db", ".h5", ".png", ".npz", ".xlsx"):
            found[str(path.relative_to(folder))] = path.read_bytes().decode(errors="replace")
        else:
            found[str(path.relative_to(folder))] = None
    return found
