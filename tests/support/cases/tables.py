"""Tables of files: each rank reads its part."""

from __future__ import annotations

import contextlib
import os

import numpy as np

from matex_tf.core import row_partition, world
from matex_tf.readers.formats import registry
from matex_tf.readers.formats.csv import scan as csv_scan
from matex_tf.readers.formats.csv import source as csv_source
from matex_tf.readers.formats.csv import table as csv_table
from matex_tf.readers.tables.table import ReadOptions, all_or_none


@contextlib.contextmanager
def sizes(block=None, step=None, piece=None, keep=None, hand=None):
    """Other sizes of the pieces in which CSV text is treated, so that small files have many."""
    places = [(csv_scan, "BLOCK_BYTES", block), (csv_table, "STEP_BYTES", step), (csv_table, "PIECE_BYTES", piece),
              (csv_table, "KEEP_BYTES", keep), (csv_source, "KEEP_BYTES", keep),
              (csv_table, "_PASS_BYTES", hand)]  # fmt: skip
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    try:
        for module, name, value in places:
            if value is not None:
                setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


SMALL = {"block": 64, "step": 32, "piece": 1024, "hand": 50}


def opened(module, paths, wanted):
    return registry.named(module).open(paths, ReadOptions(**wanted), world.current())


def shares(module, paths, wanted, small=None):
    """This rank's rows; after that, ranges of all rows that it reads by itself must be the same again.

    Returns:
        Inputs and labels of this rank, and whether the ranges were right.
    """
    ranks = world.current()
    with sizes(**(small or {})):
        table = opened(module, paths, wanted)
        low, high = row_partition.span(table.rows, ranks.rank, ranks.size)
        with all_or_none(ranks, "read"):
            x, y = table.read(low, high)
        every, labels = table.read(0, table.rows)
        right = len(every) == table.rows and np.array_equal(every[low:high], x, equal_nan=True)
        random = np.random.default_rng(ranks.rank)
        for _ in range(3):
            start, stop = sorted(random.integers(0, table.rows + 1, 2).tolist())
            some, some_labels = table.read(start, stop)
            right &= np.array_equal(some, every[start:stop], equal_nan=True) and some.dtype == x.dtype
            if labels is not None:
                right &= bool(np.array_equal(some_labels, labels[start:stop]) or labels.dtype.kind == "f")
                right &= some_labels.dtype == y.dtype and some_labels.shape[1:] == y.shape[1:]
        return x, y, bool(right)


def in_pieces(paths, wanted, keep=None):
    """A rank's part in small reads, in order, as a stream does; with what was kept on opening, or without."""
    ranks = world.current()
    with sizes(**SMALL, keep=keep):
        table = opened("csv", paths, wanted)
        low, high = row_partition.span(table.rows, ranks.rank, ranks.size)
        pieces = [table.read(start, min(start + 7, high)) for start in range(low, high, 7)]
        held = sum(kept.stop - kept.start for kept in table._kept)
        x = np.concatenate([x for x, _ in pieces] or [table.read(0, 0)[0]])
        return x, held


def bytes_read(module, warm, paths, wanted):
    """Bytes that this rank read from files to open a table and read its part; rows of the part."""
    ranks = world.current()
    opened(module, warm, wanted).read(0, 1)  # imports read files too
    ranks.barrier("begin to count")
    before = _read_chars()
    table = opened(module, paths, wanted)
    low, high = row_partition.span(table.rows, ranks.rank, ranks.size)
    x, _ = table.read(low, high)
    return _read_chars() - before, len(x)


def _read_chars():
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def changed(module, path, wanted):
    """The file grows after it was opened: a later read finds that out on every rank."""
    ranks = world.current()
    table = opened(module, [path], wanted)
    if ranks.rank == ranks.size - 1:
        with open(path, "ab") as file:
            file.write(b"1,2,3\n")
        os.utime(path, (1, 1))
    ranks.barrier("the file has changed")
    with all_or_none(ranks, "read"):
        table.read(0, table.rows)
        table.read(0, table.rows)
