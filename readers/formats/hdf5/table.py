"""HDF5 files: a dataset of inputs and one of labels, or a dataset for each class (`classes`)."""

from __future__ import annotations

from collections.abc import Sequence

from matex_tf.core.world import World
from matex_tf.readers.formats.hdf5 import classes as hdf5_classes
from matex_tf.readers.formats.hdf5.file import Hdf5File
from matex_tf.readers.safety.signature import looks_like_hdf5
from matex_tf.readers.tables.arrays import ArrayTable, check_plausible, open_each
from matex_tf.readers.tables.format import Format
from matex_tf.readers.tables.table import ReadOptions, Table


def open(paths: Sequence[str], wanted: ReadOptions, ranks: World) -> Table:
    """Open HDF5 files as one table. Every rank calls it.

    Datasets may lie anywhere in the file ("group/x"), be contiguous, chunked or compressed, and hold numbers of any
    kind, booleans, enums (as their numbers) or text. Text of fixed length becomes numpy's "U", of variable length an
    array of str objects.

    A file without a usual pair of names, whose top level is two or more datasets (or groups of one dataset) of the same
    dtype and shape of rows, is taken as one dataset for each class: see `classes.ClassTable`.

    Raises:
        DataError: on every rank: a file cannot be read, or has not what is wanted.
    """
    return open_each(paths, wanted, ranks, "open HDF5 files", _open_one)


FORMAT = Format("hdf5", looks_like_hdf5, open, ("h5",))


def _open_one(path: str, wanted: ReadOptions) -> Table:
    file = Hdf5File(path)
    classes = hdf5_classes.find(file.columns) if wanted.x is None and wanted.y in (None, False) else {}
    if not classes:
        return ArrayTable(file, wanted)
    file.check(list(column.name for column in classes.values()))
    for column in classes.values():
        check_plausible(path, file.kind, column, sum(watched.bytes for watched in file.everything))
    return hdf5_classes.ClassTable(file, classes, labelled=wanted.y is not False, dtype=wanted.dtype)
