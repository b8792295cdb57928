"""MaTEx's layout of HDF5: a dataset for each class, whose rows are the samples of that class.

Read one class after the other, a rank would hold samples of one class, and every batch would be of few classes. So
the rows of the table are the classes' rows in turn: row i of a class of n has the place (i + 1/2) / n, and rows are
sorted by place, the lower class first where places are equal. Every range of the table then has the classes in the
proportion of the whole, and takes a contiguous range of each dataset. It is the order of `row_partition.Interleaving`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from matex_tf.core.row_partition import Interleaving
from matex_tf.errors import DataError, listed
from matex_tf.readers.formats.hdf5.file import Hdf5File
from matex_tf.readers.safety.limits import room
from matex_tf.readers.tables import input_label_names
from matex_tf.readers.tables.arrays import Column, data_errors
from matex_tf.readers.tables.table import Arrays, Table


def find(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The dataset of each class, by the class's name in the order of labels; nothing where it is another layout.

    It is this layout only where there is no mistaking it: two classes at least, every item of the top level is a
    dataset or holds just one, all have the same dtype and the same shape of rows, a row is no single value, and no name
    is usual for inputs or labels. Names that are whole numbers are sorted as numbers, and come before others.
    """
    by_class: dict[str, list[Column]] = {}
    for column in columns.values():
        by_class.setdefault(column.name.partition("/")[0], []).append(column)
    if len(by_class) < 2 or any(len(found) > 1 for found in by_class.values()):
        return {}
    alone = {name: found[0] for name, found in by_class.items()}
    if any(column.refused or not column.shape for column in alone.values()):
        return {}
    if len({(column.dtype, column.shape) for column in alone.values()}) > 1:
        return {}
    if any(name.lower() in input_label_names.USUAL for name in alone):
        return {}
    return {name: alone[name] for name in sorted(alone, key=_place_of_name)}


def _place_of_name(name: str) -> tuple[bool, int, str]:
    try:
        return False, int(name), name
    except ValueError:
        return True, 0, name


class ClassTable(Table):
    """The rows of a file with a dataset for each class.

    Labels are int64, numbers of classes in the order of `classes`.
    """

    def __init__(self, file: Hdf5File, columns: Mapping[str, Column], labelled: bool, dtype: Any = None):
        """Raises: DataError: the inputs are text, and numbers are wanted."""
        self.file, self.paths = file, (file.path,)
        self.classes, self._columns = tuple(columns), list(columns.values())
        self.names, self.labelled = tuple(column.name for column in self._columns), labelled
        self.notes = file.notes
        self.columns = self.names
        of = f"one dataset of inputs for each of {len(self.classes)} classes ({listed(self.classes)})"
        self.said = f"{of}, {'labels from 0 in this order' if labelled else 'no labels (y=False)'}"
        self.turns = Interleaving([column.rows for column in self._columns])
        self.rows = self.turns.total
        self._dtype = self._columns[0].dtype if dtype is None else np.dtype(dtype)
        if self._columns[0].dtype.kind not in "biuf" and self._dtype != self._columns[0].dtype:
            raise DataError(f"{file.path} holds no numbers, and cannot become {self._dtype.name}.")

    def read(self, start: int, stop: int) -> tuple[Arrays, Arrays | None]:
        if not 0 <= start <= stop <= self.rows:
            raise DataError(f"{self.file.path} has {self.rows} rows: there are no rows {start} to {stop}.")
        first, last = self.turns.before(start), self.turns.before(stop)
        with data_errors(self.file.path, f"read (rows {start} to {stop})", self.file.everything):
            gathered = room(self.file.path, stop - start, self._columns[0].shape, self._dtype)
            ends = np.cumsum(last - first)
            self.file.fill_ranges(
                [
                    (column, gathered[end - (high - low) : end], int(low), int(high))
                    for column, low, high, end in zip(self._columns, first, last, ends, strict=True)
                    if low < high
                ]
            )
            labels, place = self.turns.sorted(first, last)
            inputs = gathered[place]
        for watched in self.file.everything:
            watched.check()
        return inputs, labels if self.labelled else None
