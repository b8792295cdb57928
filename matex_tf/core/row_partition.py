"""Which rows of which rank make up which batch.

Data that every rank holds whole are divided batch by batch: `span`. Where each rank holds rows of its own (a shard),
`Interleaving` says how many of them a rank gives to each global batch, so that every row is used once an epoch, the
batches have the script's size, and ranks that hold more rows give more of them all along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from matex_tf.state import notes, run_state


def span(total: int, rank: int, size: int) -> tuple[int, int]:
    """A rank's contiguous part of `total` rows, first and one past the last; parts differ by one row at most.

    Args:
        total: rows, 0 or more.
        size: the number of ranks.
    """
    return rank * total // size, (rank + 1) * total // size


def own_span(total: int, rank: int, size: int, virtual: int = 0) -> tuple[int, int]:
    """A rank's contiguous part of `total` rows, that of its share of so many virtual ranks; 0 for none.

    Args:
        total: rows, 0 or more.
        size: the number of ranks.
        virtual: how many virtual ranks `--reproducible` has; 0 without it.
    """
    if not virtual:
        return span(total, rank, size)
    first, last = span(virtual, rank, size)
    return first * total // virtual, last * total // virtual


class Interleaving:
    """How shards of these sizes take turns.

    The rows of all ranks are put in the order of (i + 1/2) / n, for row i of a rank that has n; where that is equal the
    lower rank comes first. The first batch is the first rows in that order, and so on.
    """

    def __init__(self, counts: Sequence[int]):
        """Args: counts: rows of each rank."""
        self.counts = np.asarray(counts, np.int64)
        self.total = int(self.counts.sum())

    def before(self, row: int) -> np.ndarray:
        """How many rows of each rank are among the first `row` in that order; int64 of shape (ranks,)."""
        if row <= 0 or row >= self.total:
            return np.zeros_like(self.counts) if row <= 0 else self.counts.copy()
        # Among the places up to t there are n t rows of a rank with n, half a row more or less. So the place of the row
        # that is looked for is row / total, half a row a rank more or less; only the rows near it are sorted.
        near, slack = row / self.total, (len(self.counts) + 2) / (2 * self.total)
        low = np.clip(np.floor(self.counts * (near - slack)).astype(np.int64) - 1, 0, self.counts)
        high = np.clip(np.ceil(self.counts * (near + slack)).astype(np.int64) + 1, 0, self.counts)
        ranks, _ = self.sorted(low, high)
        return low + np.bincount(ranks[: row - int(low.sum())], minlength=len(self.counts))

    def sorted(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows `low[r]` to `high[r]` of every rank r, in that order.

        Args:
            low, high: int64 of shape (ranks,).

        Returns:
            The rank of each row, int64; and its position among these rows when rank follows rank, int64.
        """
        lengths = high - low
        ranks = np.repeat(np.arange(len(lengths)), lengths)
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        rows = np.arange(len(ranks)) - np.repeat(starts - low, lengths)
        # Places of different rows differ in 64 bits of mantissa for ranks with up to a billion rows.
        place = (2 * rows + 1).astype(np.longdouble) / (2 * self.counts[ranks])
        order = np.lexsort((ranks, place))
        return ranks[order], order

    def batches(self, batch_size: int) -> int:
        """The number of global batches of an epoch; the last may be smaller."""
        return -(-self.total // batch_size)

    def spans(self, batch: int, batch_size: int) -> np.ndarray:
        """Rows that each rank gives to a batch, counted from its own first row; int64 of shape (ranks, 2).

        Args:
            batch: its number in the epoch, from 0.
            batch_size: rows of a global batch.
        """
        first, last = self.before(batch * batch_size), self.before((batch + 1) * batch_size)
        return np.stack([first, last], axis=1)

    def order(self, batch_size: int) -> np.ndarray:
        """Rows of the whole, rank 0's first, in the order in which batches of this size use them; int64 (total,)."""
        starts = np.concatenate([[0], np.cumsum(self.counts)[:-1]])
        pieces = [
            np.arange(start + low, start + high)
            for batch in range(self.batches(batch_size))
            for start, (low, high) in zip(starts, self.spans(batch, batch_size), strict=True)
        ]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


class OwnRows(str, notes.Inside):
    """Of a tf.data pipeline that yields each rank's own rows of every global batch, instead of whole batches:
    "shard" where they come from a part of the files, "source" where `--data source` has dealt out the elements."""

    __slots__ = ()


class _Listeners(list[Callable[[int, int, int], None]]):
    """Of a run: who wants to hear of batches. Readers know nothing of the patches."""


def listen(listener: Callable[[int, int, int], None]) -> None:
    """Have `listener` called for each batch that a `DataSet` gives to a loop of the script's own.

    Args:
        listener: gets the rows of this rank, the rows of the batch, and where this rank's begin in it.
    """
    run_state.part(_Listeners).append(listener)


def given(own: int, batch: int, first: int) -> None:
    """A `DataSet` gives a batch to a loop of the script's own: `own` of its `batch` rows, from `first`, are ours."""
    for listener in run_state.part(_Listeners):
        listener(own, batch, first)
