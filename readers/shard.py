"""A shard: the rows of a table that this rank holds, and its place among the ranks."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf import settings
from matex_tf.core import row_partition, starting
from matex_tf.core.row_partition import Interleaving, span
from matex_tf.core.world import World
from matex_tf.errors import DataError, quoted, shortened
from matex_tf.readers import missing_values, of_all_ranks, own_rows
from matex_tf.readers.safety.limits import room
from matex_tf.readers.tables.table import Arrays, Table, rows_with_gaps, take_rows
from matex_tf.readers.tf_pipeline import AsOneRank, pipeline
from matex_tf.state import notes

#: Of `one_hot`: for labels that are classes.
AUTO = "auto"
_MOST_LIKELY = 1000  # classes, where nobody has said that labels are classes

#: How much a pass over rows that are not kept reads at a time.
BLOCK_BYTES = 32 << 20


class Shard:
    """This rank's contiguous part of the rows of a table.

    Attributes:
        rank, size: this rank, and the number of ranks.
        rows: the rows of the files that this rank holds, counted from 0, as a range.
        counts: how many rows each rank holds; they differ by one at most.
        total_rows: how many all ranks hold together.
        paths: the files.
        columns: the inputs: names of columns, or of arrays; positions where the file has no names.
        ranks: whom the rows were shared out among, by the numbers that they had at the start of the job.
        generation: how often ranks had died by then.
    """

    def __init__(
        self,
        table: Table,
        window: range,
        ranks: World,
        *,
        one_hot: bool | int | str = False,
        normalize: float | bool = False,
        missing: missing_values.Missing = None,
        scale_of: Shard | None = None,
        form: Callable[[np.ndarray], np.ndarray] | None = None,
    ):
        """Share out rows of a table; reads nothing yet.

        Args:
            table: the table.
            window: the rows of it that are shared out.
            ranks: among whom.
            one_hot: whether labels become one-hot vectors; a number says how many classes there are; "auto" for those
                that are classes: words, whole numbers from 0, or -1 and 1.
            normalize: what inputs are divided by, as float32; True for the largest absolute value of all ranks.
            missing: what missing inputs (NaN) become: a number, or the "mean" or "median" of their column over the rows
                of all ranks; None leaves them.
            scale_of: a shard whose divisor, classes and values of missing inputs are taken (a test set is scaled as its
                training set was).
            form: gives inputs another shape of rows.
        """
        self._table, self._ranks = table, ranks
        self._one_hot, self._normalize, self._form = one_hot, normalize, form
        self._missing = missing_values.check(missing)
        self._fillings: list[Any] | None = None
        self._like = scale_of or self
        self._kept: tuple[Arrays, Arrays | None] | None = None
        self._classes: np.ndarray | None = None
        self._words: np.ndarray | None = None
        self._divisor: float | None = None
        self._window = window
        self.paths, self.columns = table.paths, table.columns
        self.rank, self.size = ranks.rank, ranks.size
        self.ranks, self.generation = list(ranks.first_ranks), ranks.generation
        self.total_rows = len(window)
        spans = [span(len(window), rank, ranks.size) for rank in range(ranks.size)]
        self.counts = tuple(high - low for low, high in spans)
        low, high = spans[ranks.rank]
        self.rows = window[low:high]
        self.turns = Interleaving(self.counts)
        self._at = 0
        self._comes = ranks.arrival is not None
        if ranks.size > 1:
            ranks.holds_shard = True

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Any:
        """`x, y = shard`."""
        return iter((self.data, self.labels))

    def __repr__(self) -> str:
        return (
            f"Shard(rank {self.rank} of {self.size}, rows {self.rows.start} to {self.rows.stop} of {self.total_rows}, "
            f"{', '.join(map(os.path.basename, self.paths[:3]))}{', …' if len(self.paths) > 3 else ''})"
        )

    @property
    def data(self) -> Arrays:
        """The inputs of this rank's rows, read at the first use; a tuple of arrays if there are several inputs.

        What NumPy computes over the rows (`np.mean`) is that of all ranks, or refused, see `own_rows`: every rank must
        come to it.

        With `one_hot=True`, `normalize=True` or `missing=` every rank must come here: the ranks compare what they hold.

        Raises:
            DataError: the files hold something else than is wanted, or have changed.
        """
        return self._read_all()[0]

    @property
    def labels(self) -> Arrays | None:
        """The labels of this rank's rows, or None if the table has none; see `data`."""
        return self._read_all()[1]

    @property
    def classes(self) -> np.ndarray | None:
        """What the positions of a one-hot label mean: numbers, or words in alphabetical order.

        Of labels that are words, also without `one_hot`: `np.searchsorted(shard.classes, shard.labels)` numbers them.
        Of an HDF5 file with a dataset for each class, their names. None for other labels.

        Every rank must come here: the ranks compare what they hold.
        """
        if not self._table.labelled:
            return None
        if self._one_hot is False and not self._table.words:
            return np.asarray(self._table.classes) if self._table.classes else None
        if self._one_hot is False and self._like._words is None:
            self._like._words = self._like._found_classes(None)
        self._prepare()
        return self._like._words if self._one_hot is False else self._like._classes

    def order(self, batch_size: int) -> np.ndarray:
        """The rows of the files in the order in which the ranks together use them, without shuffling.

        One rank that visits the rows in this order, in batches of this size, computes what the ranks compute.

        Returns:
            int64 of shape (total_rows,): each row once.
        """
        return np.asarray(self._window, np.int64)[self.turns.order(batch_size)]

    def next_batch(self, batch_size: int) -> tuple[Arrays, Arrays | None]:
        """This rank's rows of the next global batch of `batch_size`; from the first again after the last."""
        x, y = self._read_all()
        rows = self.next_rows(batch_size)
        return take_rows(x, rows), take_rows(y, rows)

    def next_rows(self, batch_size: int) -> slice:
        """Which of this rank's rows are in the next global batch."""
        self.check_owner()
        spans = self.turns.spans(self._at, batch_size)
        low, high = spans[self.rank]
        counts = spans[:, 1] - spans[:, 0]
        row_partition.given(int(high - low), int(counts.sum()), int(counts[: self.rank].sum()))
        self._at = (self._at + 1) % max(1, self.turns.batches(batch_size))
        return slice(int(low), int(high))

    def to_tf_data(self, batch_size: int, shuffle: bool = False, seed: int | None = None) -> Any:
        """A tf.data pipeline of this rank's rows of every global batch, read from the files as it goes.

        Args:
            batch_size: rows of a global batch, over all ranks.
            shuffle: whether the rows change places, anew each epoch: blocks of some 32 MB come in random order, and
                the rows of a block in random order.
            seed: of that; None takes one from NumPy's global generator.

        Returns:
            A `tf.data.Dataset` of (inputs, labels), or of inputs. It takes the place of arrays in `fit`, `evaluate` and
            `predict`; `map` and `prefetch` may follow it.
        """
        if starting.recorded() and self.size > 1:
            return pipeline(AsOneRank(self), batch_size, shuffle, seed, (self.rank, self.size))
        return pipeline(self, batch_size, shuffle, seed)

    def read(self, low: int, high: int) -> tuple[Arrays, Arrays | None]:
        """Some of this rank's rows, as `data` and `labels` have them, and not kept.

        Args:
            low, high: the first of them, and one past the last.

        Returns:
            Inputs and labels, (high - low, …) each; None for labels that there are not.
        """
        self._prepare()
        return self._finish(*self._raw(low, high))

    def read_any(self, low: int, high: int) -> tuple[Arrays, Arrays | None]:
        """Some of the rows of all ranks, in the order of the files; see `read`.

        Args:
            low, high: the first of them, and one past the last.
        """
        self._prepare()
        return self._finish(*self._raw_of(self._window[low:high]))

    def read_of(self, rank: int, low: int, high: int) -> tuple[Arrays, Arrays | None]:
        """Some of another rank's rows, for those that take over from a dead one; `data` must have been read.

        Args:
            rank: whose they are.
            low, high: the first of them, and one past the last.

        Raises:
            DataError: the files have changed, or cannot be read.
        """
        first, last = span(self.total_rows, rank, self.size)
        return self._finish(*self._raw_of(self._window[first:last][low:high]))

    def check_owner(self) -> None:
        """Raises: DataError: this rank has joined the job since it opened the files, alone: it has all rows."""
        if self._comes and not self._ranks.is_single:
            raise DataError(
                f"{self.paths[0]}: this rank has joined the job since it opened the file, and has no rows of its own: "
                "open it after the fit, or give its data and labels to fit and evaluate."
            )

    def whole(self, array: np.ndarray) -> np.ndarray:
        """The rows of all ranks, in the order of the files, of an array that has a row for each of this rank's rows.

        Every rank must come here, and has the memory for it.
        """
        plain = np.asarray(array)
        return of_all_ranks.whole(plain, "join the rows of a DataSet") if self.size > 1 else plain

    def block_rows(self) -> int:
        """Rows of some `BLOCK_BYTES`."""
        x, y = self._raw(0, 0)
        arrays = [*(x if isinstance(x, tuple) else [x]), *([] if y is None else y if isinstance(y, tuple) else [y])]
        row = sum(a.dtype.itemsize * int(np.prod(a.shape[1:], dtype=np.int64)) for a in arrays)
        return max(1, BLOCK_BYTES // max(1, row))

    def load(self) -> tuple[Arrays, Arrays | None]:
        """This rank's rows as the files have them; to be given to `keep`."""
        return self._raw(0, len(self.rows))

    def keep(self, raw: tuple[Arrays, Arrays | None]) -> None:
        """Make `data` and `labels` of what `load` gave. Every rank must come here, see `data`."""
        self._prepare(raw)
        kept = self._finish(*raw)
        if self.size > 1:
            kept = own_rows.own(kept[0]), own_rows.own(kept[1])
        gaps = rows_with_gaps(raw[0]) if self._table.gaps is None else 0
        if gaps and settings.current().notes:
            name = shortened(os.path.basename(self.paths[0]), 300)
            become = missing_values.in_words(self._missing)
            self._ranks.log(f"{name}: {gaps} of the {len(self)} rows of rank {self.rank} lack an input ({become})")
        again = copy.copy(self)  # for as long as the arrays live, and without holding on to them
        again._kept, again._like = None, again if self._like is self else self._like
        for column, array in enumerate(part for half in kept for part in (half if isinstance(half, tuple) else [half])):
            if array is not None:
                notes.put(array, _Origin(again, column))
        self._kept = kept

    def _read_all(self) -> tuple[Arrays, Arrays | None]:
        if self._kept is None:
            self.keep(self.load())
        assert self._kept is not None
        return self._kept

    def _raw(self, low: int, high: int) -> tuple[Arrays, Arrays | None]:
        return self._raw_of(self.rows[low:high])

    def _raw_of(self, rows: range) -> tuple[Arrays, Arrays | None]:
        if len(rows) == 0:
            return self._table.read(0, 0)
        x, y = self._table.read(rows[0], rows[-1] + 1)
        every = slice(None, None, rows.step)
        return (take_rows(x, every), take_rows(y, every)) if rows.step != 1 else (x, y)

    def _prepare(self, raw: tuple[Arrays, Arrays | None] | None = None) -> None:
        """Find divisor and classes, once. The ranks must compare, so all of them come here."""
        if self._like is not self:
            self._like._prepare()
            return
        if self._fillings is None and self._missing is not None:
            blocks = itertools.chain([self._raw(0, 0)], self._blocks(raw))
            self._fillings = missing_values.values(self._missing, (x for x, _ in blocks), self._ranks, self.paths[0])
        if self._divisor is None and self._normalize is not False:
            if self._normalize is True:
                largest = max((_largest(x) for x, _ in self._blocks(raw)), default=0.0)
                self._divisor = max(self._ranks.allgather(largest, "find the largest input")) or 1.0
            else:
                self._divisor = float(self._normalize)
        if self._classes is None and self._one_hot is not False and self._table.labelled:
            if self._one_hot == AUTO:
                self._classes = self._likely_classes(raw)
            elif self._one_hot is True:
                self._classes = self._found_classes(raw)
            else:
                self._classes = np.arange(self._one_hot)

    def _likely_classes(self, raw: tuple[Arrays, Arrays | None] | None) -> np.ndarray | None:
        """The classes of labels that are likely to be classes; otherwise None, and labels stay as they are."""
        found: list[Any] | None = []
        for _, y in self._blocks(raw):
            several = isinstance(y, tuple) or y is None or y.ndim > 2 or (y.ndim == 2 and y.shape[1] != 1)
            found = None if several or found is None else sorted({*found, *np.unique(_single(y, self)).tolist()})
            if found is None or len(found) > _MOST_LIKELY:
                found = None
                break
        everyone = self._ranks.allgather(found, "find the classes")
        if all(one is not None for one in everyone):
            values = sorted(set().union(*everyone))
            words, low, high = isinstance(values[0], str), values[0], values[-1]
            if words or values == [-1, 1]:
                return np.asarray(values)
            if low == 0 and high < _MOST_LIKELY and all(value == int(value) for value in values):
                return np.arange(int(high) + 1)
        self._one_hot = False
        return None

    def _found_classes(self, raw: tuple[Arrays, Arrays | None] | None) -> np.ndarray:
        mine = sorted({value for _, y in self._blocks(raw) for value in np.unique(_single(y, self)).tolist()})
        return _all_classes(sorted(set().union(*self._ranks.allgather(mine, "find the classes"))), self.paths[0])

    def _blocks(self, raw: tuple[Arrays, Arrays | None] | None) -> Any:
        if raw is not None:
            yield raw
            return
        step = self.block_rows()
        for low in range(0, len(self.rows), step):
            yield self._raw(low, min(low + step, len(self.rows)))

    def _finish(self, x: Arrays, y: Arrays | None) -> tuple[Arrays, Arrays | None]:
        divisor, classes = self._like._divisor, self._like._classes
        if self._like._fillings is not None:
            several = zip(x if isinstance(x, tuple) else (x,), self._like._fillings, strict=True)
            changed = tuple(missing_values.filled(one, value) for one, value in several)
            x = changed if isinstance(x, tuple) else changed[0]
        if self._form is not None:
            x = _each(x, self._form)
        if divisor is not None:
            x = _each(x, lambda array: np.divide(array, divisor, dtype=np.float32))
        if classes is not None and y is not None:
            y = _one_hot(_single(y, self), classes, self)
        return x, y


class _Origin(NamedTuple):
    """Of an array: what `origin` gives."""

    shard: Shard
    column: int


def origin(array: Any) -> tuple[Shard, int] | None:
    """The shard whose `data` or `labels` an array is, unchanged, and which of its columns (inputs, then labels)."""
    return notes.found(array, _Origin)


def _each(arrays: Arrays, change: Any) -> Arrays:
    return tuple(map(change, arrays)) if isinstance(arrays, tuple) else change(arrays)


def _largest(x: Arrays) -> float:
    arrays: Sequence[np.ndarray] = x if isinstance(x, tuple) else (x,)
    return max((float(np.nanmax(np.abs(a.astype(np.float64)))) for a in arrays if a.size), default=0.0)


def _single(y: Arrays | None, shard: Shard) -> np.ndarray:
    if isinstance(y, tuple) or y is None or y.ndim > 2 or (y.ndim == 2 and y.shape[1] != 1):
        raise DataError(f"{shard.paths[0]}: one_hot needs one class for each row, and the labels have more.")
    return y.reshape(-1)


def _all_classes(found: list[Any], path: str) -> np.ndarray:
    """Words as they are; whole numbers from 0 to the largest."""
    if not found:
        return np.arange(0)
    if isinstance(found[0], (str, bytes)):
        return np.asarray(found)
    if any(value != int(value) or value < 0 for value in found):
        odd = next(value for value in found if value != int(value) or value < 0)
        raise DataError(
            f"{path}: one_hot needs labels that are words or whole numbers from 0, and one is {quoted(odd)}."
        )
    return np.arange(int(found[-1]) + 1)


def _one_hot(labels: np.ndarray, classes: np.ndarray, shard: Shard) -> np.ndarray:
    places = np.searchsorted(classes, labels)
    known = places < len(classes)
    known[known] = classes[places[known]] == labels[known]
    if not known.all():
        at = int(np.flatnonzero(~known)[0])
        raise DataError(
            f"{shard.paths[0]}: row {at} of rank {shard.rank}'s part has the label {quoted(labels[at])}, which is none "
            f"of the {len(classes)} classes."
        )
    try:
        vectors = room(shard.paths[0], len(labels), (len(classes),), np.float32)
    except DataError:
        raise DataError(
            f"{shard.paths[0]}: one_hot makes vectors of {len(classes)} numbers, one for each class, and for "
            f"{len(labels)} rows they would take {len(labels) * len(classes) >> 18} MB of memory, which this machine "
            "does not have: leave one_hot out, and number the labels (np.searchsorted(shard.classes, shard.labels))."
        ) from None
    vectors[...] = 0.0
    vectors[np.arange(len(labels)), places] = 1.0
    return vectors
