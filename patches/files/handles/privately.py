"""A file that is opened by a name: the real one on one rank, a private one of its own on each other rank.

For what must be a file on the disk on every rank: archives, and what TensorFlow opens by itself. Each rank writes as
it would; closing is a meeting, see `kinds.meet_after`.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

from matex_tf.core import namespaces
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
    largest_copy: float = math.inf,
) -> Call | None:
    """Open a file for writing; the call, or None where this rank is on its own.

    Args:
        name, where, file: see `opened.call_of`. mode: as `open` takes it.
        opening: opens it under another path.
        of: gives what was opened, once it is open.
        lasts: whether the private file keeps its name until what was opened is gone: it is opened later.
        largest_copy: bytes of a file, of which the ranks hold no copies if it has more: then every rank opens it, and
            a line says so.
    """
    path, call = os.fsdecode(file), opened.call_of(name, where, file, mode)
    size, copied = 0, mode.startswith(("a", "r"))

    def act() -> int:
        nonlocal size
        size = os.path.getsize(path) if copied and os.path.isfile(path) else 0
        opening(file)
        return size

    def elsewhere(sent: int) -> None:
        nonlocal size
        size = sent
        if size > largest_copy:
            return opening(file)
        folder = tempfile.mkdtemp(prefix="matex-")
        try:
            private = os.path.join(folder, os.path.basename(path))
            if copied and os.path.exists(path):
                shutil.copyfile(path, private)
            opening(private)
            if lasts:
                weakref.finalize(of(), namespaces.here_alone(shutil.rmtree), folder, ignore_errors=True)
        finally:
            if not lasts:
                shutil.rmtree(folder)

    _, shared = once.attempt(call, act, elsewhere=elsewhere)
    if not shared:
        return None
    if size > largest_copy:
        opened.log_too_large(path)
        return None
    if copied:
        kinds.meet_after("copy", call)
    takeover.watch(of(), path, call.folder)
    return call
