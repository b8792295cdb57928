"""A file that is opened by a name: the real one on one rank, a private one of its own on each other rank.

For what must be a file on the disk on every rank: archives, and what TensorFlow opens by itself. Each rank writes as
it would; closing is a meeting, see `kinds.meet_after`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

from matex_tf.patches.files import once, takeover
from matex_tf.patches.files.handles import kinds, opened
from matex_tf.patches.files.once import Call


def open_file(
    name: str,
    where: str,
    file: Any,
    mode: str,
    opening: Callable[[Any], Any],
    of: Callable[[], Any],
    lasts: bool = False,
) -> Call | None:
    """Open a file for writing; the call, or None where this rank is on its own.

    Args:
        opening: opens it under another path.
        of: gives what was opened, once it is open.
        lasts: whether the private file keeps its name until what was opened is gone: it is opened later.
    """
    path, call = os.fsdecode(file), opened.call_of(name, where, file, mode)
    shared, copied = True, mode.startswith(("a", "r"))

    def alone() -> None:
        nonlocal shared
        shared = False
        opening(file)

    def elsewhere(told: None) -> None:
        folder = tempfile.mkdtemp(prefix="matex-")
        try:
            private = os.path.join(folder, os.path.basename(path))
            if copied and os.path.exists(path):
                shutil.copyfile(path, private)
            opening(private)
            if lasts:
                weakref.finalize(of(), shutil.rmtree, folder, ignore_errors=True)
        finally:
            if not lasts:
                shutil.rmtree(folder)

    once.do(call, lambda: opening(file), lambda told: None, elsewhere, alone)
    if not shared:
        return None
    if copied:
        kinds.meet_after("copy", call)
    takeover.watch(of(), path, call.folder)
    return call
