"""What a file format says of itself: its name, how it knows its files, and how it opens them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matex_tf.core.world import World
from matex_tf.readers.tables.table import ReadOptions, Table


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
        name: what `format=` calls it, in lower case.
        guess_can_open: (path, head) -> whether it looks like a file of this format. `head` is the first
            `packed.HEAD_BYTES` bytes, and those of what is in it where the file is packed by gzip. It must be cheap:
            every file is shown to every format until one says yes.
        open: (paths, options, ranks) -> the files as one table. Every rank calls it, with the same arguments. It raises
            `DataError`, on every rank. What ranks do alone in it stands in an `all_or_none` block.
        aliases: other names that users have for it.
        is_store: whether a path, of a directory or an address, is of this format as a whole.
        open_object: (given, options, ranks) -> what is given in place of a path as a table; None if this format does
            not know it. Every rank calls it.
    """

    name: str
    guess_can_open: Callable[[str, bytes], bool]
    open: Callable[[Sequence[str], ReadOptions, World], Table]
    aliases: tuple[str, ...] = ()
    is_store: Callable[[str], bool] = lambda path: False
    open_object: Callable[[Any, ReadOptions, World], Table | None] = lambda given, options, ranks: None
