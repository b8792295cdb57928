"""Which columns of a table of columns are inputs and which are labels, and what dtype labels have: CSV and Parquet."""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf.errors import DataError, listed, quoted
from matex_tf.readers.tables.table import ReadOptions

#: Names of a label column, in any case, that are found by themselves; the first that is there is taken.
LABEL_NAMES = ("label", "labels", "target", "class", "y")


class Kind(enum.IntEnum):
    """What all values of a label column are; a table with two kinds has the greater one."""

    INTEGER = 0
    NUMBER = 1
    WORDS = 2

    @property
    def dtype(self) -> np.dtype:
        """Of the array of labels. Words are Python's str: a fixed width would differ from file to file."""
        return np.dtype((np.int64, np.float32, object)[self])


@dataclass(frozen=True)
class ColumnSelection:
    """Columns of a table, by position.

    Attributes:
        x: the inputs, in the order in which they were asked for.
        y: the labels; none where there are no labels.
        dtype: of the inputs.
        names: of all columns, as messages have them.
        why: how the labels were found, in words.
        columns: names of the inputs, as the file has them; positions where it has none.
    """

    x: tuple[int, ...]
    y: tuple[int, ...]
    dtype: np.dtype
    names: tuple[str, ...]
    why: str = ""
    columns: tuple[str | int, ...] = ()

    @property
    def said(self) -> str:
        """Inputs and labels in words."""
        inputs = f"{len(self.x)} input{'s' * (len(self.x) != 1)} ({listed(self.names[column] for column in self.x)})"
        if not self.y:
            return f"{inputs}, no labels ({self.why})"
        return (
            f"{inputs}, label{'s' * (len(self.y) > 1)} {listed(self.names[column] for column in self.y)} ({self.why})"
        )

    @functools.cached_property
    def needed(self) -> list[int]:
        """All columns that are read, in the order of the file."""
        return sorted({*self.x, *self.y})

    @functools.cached_property
    def place(self) -> dict[int, int]:
        """Where each of `needed` stands in it."""
        return {column: place for place, column in enumerate(self.needed)}

    def labels(self, columns: Sequence[np.ndarray], rows: int, kind: Kind) -> np.ndarray | None:
        """Label columns as one array: (rows,), or (rows, columns) where there are several; None without labels.

        Args:
            columns: one array of shape (rows,) for each label column.
            kind: what the labels of the whole table are, which gives their dtype.
        """
        if not self.y:
            return None
        if len(columns) == 1:
            return np.asarray(columns[0], kind.dtype)
        together = np.empty((rows, len(columns)), kind.dtype)
        for position, column in enumerate(columns):
            together[:, position] = column
        return together


def choose(
    names: Sequence[str] | None, count: int, wanted: ReadOptions, path: str, aside: Container[str] = ()
) -> ColumnSelection:
    """Find the columns that a script asked for.

    Args:
        names: of the columns, or None where they have none.
        count: of the columns.
        wanted: what was asked for. y=None: a column with one of `LABEL_NAMES`, or else the last, or the first where
            `wanted.first` says so; x=None: all others.
        path: of the file, for messages.
        aside: names of columns that are taken only where they are named; positions do not count them.

    Raises:
        DataError: a column is not there, or there is none for the inputs.
    """
    shown = tuple(map(quoted, names)) if names is not None else tuple(str(i) for i in range(count))
    among = [place for place in range(count) if names is None or names[place] not in aside] or list(range(count))
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names or ()):
        places.setdefault(name, []).append(place)

    def position(name: Any, what: str) -> int:
        if isinstance(name, str):
            if names is None:
                raise DataError(
                    f"{path} has no header, so {what}={quoted(name)} names no column: give a position, 0 to "
                    f"{count - 1} (or header=True, if the first row has names)."
                )
            found = places.get(name, [])
            if len(found) == 1:
                return found[0]
            if found:
                raise DataError(f"{path} has {len(found)} columns named {quoted(name)}: give {what} as a position.")
            raise DataError(f"{path} has no column {quoted(name)}, which {what} names: it has {listed(shown)}.")
        try:
            place = operator.index(name)
        except TypeError:
            place = len(among)
        if isinstance(name, (bool, np.bool_)) or not -len(among) <= place < len(among):
            raise DataError(
                f"{path} has {len(among)} columns, and {what}={quoted(name)} is none of them: give a name, or a "
                f"position from 0 to {len(among) - 1} (negative ones count from the last)."
            )
        return among[place]

    def positions(asked: Any, what: str) -> tuple[int, ...]:
        if isinstance(asked, (str, bytes)) or not isinstance(asked, (Sequence, np.ndarray)):
            asked = [asked]
        if len(asked) == 0:
            raise DataError(f"{what}={quoted(asked)} names no column of {path}.")
        return tuple(position(name, what) for name in asked)

    if wanted.y is None:
        taken = set(positions(wanted.x, "x")) if wanted.x is not None else set()
        place, why = _label([names[i] for i in among] if names is not None else None, len(among), wanted.first)
        y: tuple[int, ...] = tuple(i for i in (among[place],) if i not in taken)
        why = why if y else f"{why} would be the label, and is an input"
    elif wanted.y is False:
        y, why = (), "y=False"
    else:
        y, why = positions(wanted.y, "y"), "as y= says"
    labels = set(y)
    x = positions(wanted.x, "x") if wanted.x is not None else tuple(i for i in among if i not in labels)
    if not x:
        raise DataError(
            f"{path} has the column{'s' * (count > 1)} {listed(shown)} and no other for the inputs: "
            "name them with x=, or say y=False if there are no labels."
        )
    dtype = np.dtype(np.float32 if wanted.dtype is None else wanted.dtype)
    if dtype.kind not in "fiu":
        raise DataError(f"the columns of {path} cannot become {dtype}: inputs are floating-point numbers or integers.")
    return ColumnSelection(x, y, dtype, shown, why, tuple(names[i] if names is not None else i for i in x))


def _label(names: Sequence[str] | None, count: int, first: bool) -> tuple[int, str]:
    """The label column where nobody has named it, and why it is that."""
    lower = [name.strip().lower() for name in names or ()]
    for name in LABEL_NAMES:
        if name in lower:
            return lower.index(name), "by its name"
    none = "the file has no names" if names is None else "none has a name that labels have"
    return (
        (0, f"the first column, as {none}") if first else (count - 1, f"the last column, as {none}: y= names another")
    )


@dataclass(frozen=True)
class Facts:
    """What was seen of the label columns of some rows.

    Attributes:
        kind: the greatest of the columns.
        missing: the first row that has no value in one of them, or has one such as "NA"; and that column.
        empty: the first row that has nothing in one of them; and that column.
        gaps: rows that lack one of the inputs.
    """

    kind: Kind = Kind.INTEGER
    missing: tuple[int, int] | None = None
    empty: tuple[int, int] | None = None
    gaps: int = 0


def agree(facts: Sequence[Facts]) -> tuple[Kind, tuple[int, int] | None]:
    """One kind for all rows; and the first row, with its column, that has no label although this kind needs one."""
    kind = max((seen.kind for seen in facts), default=Kind.INTEGER)
    if kind is Kind.NUMBER:
        return kind, None
    lacks = [seen.missing if kind is Kind.INTEGER else seen.empty for seen in facts]
    return kind, min((lack for lack in lacks if lack is not None), default=None)
