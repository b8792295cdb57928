"""While one rank writes a file and the others wait, what it reads of variables in parts they gather with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from matex_tf.core import world
from matex_tf.patches.common import run_state
from matex_tf.patches.shards.variable import Parts

_WHAT = "read variables that lie in parts"


@contextlib.contextmanager
def while_one_reads(reads: bool) -> Iterator[None]:
    """Inside of this block rank 0 reads, and the others do nothing. All ranks come here.

    Args:
        reads: whether this rank is the one.
    """
    parts, ranks = run_state.current().part(Parts), world.current()
    if ranks.is_single or parts.ask is not None or not parts.every:
        yield
        return
    if not reads:
        yield
        while (asked := ranks.broadcast(None, _WHAT)) is not None:
            number, whole = asked
            part = parts.every[number]()
            assert part is not None  # the script is the same on every rank, and one has the variable
            part.take_part(whole)
        return
    parts.ask = lambda number, whole: ranks.broadcast((number, whole), _WHAT)
    try:
        yield
    finally:
        parts.ask = None
        ranks.broadcast(None, _WHAT)
