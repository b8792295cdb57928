"""Files of arrays, read by several ranks."""

from __future__ import annotations

import os
from pathlib import Path

from matex_tf.core import row_partition, world
from matex_tf.errors import DataError
from matex_tf.readers.formats import registry
from matex_tf.readers.tables.table import ReadOptions


def open_table(paths, format=None, wanted=None):
    """A table, as `DataSet` opens it; "{rank}" in a path is the rank."""
    ranks = world.current()
    paths = [path.replace("{rank}", str(ranks.rank)) for path in paths]
    return registry.open_table(paths, format, ReadOptions(**(wanted or {})), ranks)


def shards(samples):
    """This rank's rows of each table, and the number of rows of the whole."""
    ranks = world.current()
    result = []
    for paths, format, wanted in samples:
        table = open_table(paths, format, wanted)
        x, y = table.read(*row_partition.span(table.rows, ranks.rank, ranks.size))
        result.append((x, y, table.rows, table.classes))
    return result


def refusals(samples):
    """What each table is refused with; a table that opens is read as well, and None is returned if nothing is wrong."""
    messages = []
    for paths, format, wanted in samples:
        try:
            table = open_table(paths, format, wanted)
            table.read(0, table.rows)
            messages.append(None)
        except DataError as error:
            messages.append(str(error))
    return messages


def changed(paths, how):
    """The messages of a read after rank 0 has changed the file."""
    messages = []
    for path in paths:
        table = open_table([path])
        table.read(0, 1)
        world.current().barrier("change the file")
        if world.current().rank == 0:
            change(Path(path), how)
        world.current().barrier("read the file")
        try:
            table.read(0, table.rows)
            messages.append(None)
        except DataError as error:
            messages.append(str(error))
    return messages


def change(path, how):
    if how == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + b"\0")


def bytes_read(samples, warm):
    """What this rank reads from disk for its part of each table: bytes, by the system's count."""
    shards(warm)  # imports read files too
    result = []
    for sample in samples:
        before = counted()
        shards([sample])
        result.append(counted() - before)
    return result


def counted():
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])
