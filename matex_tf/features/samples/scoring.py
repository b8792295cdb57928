"""Rows that a network knows already wait: their scores, and which of them are left out of an epoch.

InfoBatch (arXiv 2303.04947, ICLR 2024), section 3: of the rows whose score is below the mean, each is left out with
probability r; the gradients of those that stay are scaled by 1 / (1 - r), so that an epoch's gradient keeps its
expectation; the last epochs use all rows.

Who is left out depends on the seed, the epoch, the row's number and the scores of all rows, and on nothing else: it is
the same on every rank, and on any number of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from matex_tf.core.world import World

#: Codes of rows in an epoch.
LEFT_OUT, USED, SCALED = 0, 1, 2
#: Rows that are merged or drawn for at once, which bounds what is needed beside the tables.
_CHUNK = 1 << 16
_WHAT = "merge the scores of rows"


class Epoch(NamedTuple):
    """Which rows are used in an epoch.

    Attributes:
        codes: int8 (rows,), `LEFT_OUT`, `USED` or `SCALED` for each row.
        used: how many are used.
        scale: by which the gradients of rows with `SCALED` are multiplied.
        log_factor: by which a scaled loss is multiplied in logs: the mean over the epoch is then an estimate of the
            mean over all rows.
    """

    codes: np.ndarray
    used: int
    scale: float = 1.0
    log_factor: float = 1.0

    @classmethod
    def whole(cls, rows: int) -> Epoch:
        """All rows."""
        return cls(np.full(rows, USED, np.int8), rows)


class SampleScores:
    """A score for each row, and how often it was used; about 12 bytes a row.

    Attributes:
        scores: float32 (rows,), the same on every rank; NaN where a row has none yet.
        used: uint16 (rows,), the epochs in which it was trained on.
    """

    def __init__(self, rows: int, forgetting: bool = False):
        """No row has a score.

        Args:
            rows: how many there are, over all ranks.
            forgetting: whether steps say for each row if its label was predicted, and its score is how often that was
                forgotten.
        """
        self.scores = np.full(rows, np.nan, np.float32)
        self.used = np.zeros(rows, np.uint16)
        self._fresh = np.full(rows, np.nan, np.float32)  # of this rank, since they were merged
        self._right = np.zeros(rows, np.bool_) if forgetting else None

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def nbytes(self) -> int:
        """The memory of the tables, in bytes."""
        right = 0 if self._right is None else self._right.nbytes
        return self.scores.nbytes + self.used.nbytes + self._fresh.nbytes + right

    def note(self, rows: np.ndarray, values: np.ndarray) -> None:
        """What a step of this rank has found.

        Args:
            rows: int64 (n,), their numbers.
            values: float (n,).
        """
        self._fresh[rows] = values

    def gather(self, ranks: World) -> None:
        """Let rank 0 have what all ranks have found since they were merged, and the others nothing. Collective."""
        for part, total, seen in self._summed(ranks):
            self._fresh[part] = np.where(seen > 0, total, np.nan) if ranks.rank == 0 else np.nan

    def merge(self, ranks: World) -> None:
        """Let every rank have the scores that all of them have found. Collective, between two epochs.

        A row that no rank has seen keeps its score.
        """
        for part, total, seen in self._summed(ranks):
            known = seen > 0
            if self._right is None:
                self.scores[part] = np.where(known, total, self.scores[part])
            else:
                self._count_forgotten(part, known, total > 0.5)
            self.used[part] += known
        self._fresh[:] = np.nan

    def _count_forgotten(self, part: slice, known: np.ndarray, right: np.ndarray) -> None:
        """Toneva et al. (arXiv 1812.05159), section 3: right before and wrong now. Rows that were never right are the
        hardest: each time that they are wrong counts."""
        assert self._right is not None
        before, counts = self._right[part], np.nan_to_num(self.scores[part])
        wrong = known & ~right & (before | (counts >= self.used[part]))
        self.scores[part] = np.where(known, counts + wrong, self.scores[part])
        self._right[part] = np.where(known, right, before)

    def _summed(self, ranks: World) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Piece by piece, the sum over the ranks of what is fresh, and on how many it is."""
        for low in range(0, len(self), _CHUNK):
            part = slice(low, low + _CHUNK)
            seen = np.isfinite(self._fresh[part])
            own = np.where(seen, self._fresh[part], np.float32(0))
            if ranks.is_single:
                yield part, own, seen
                continue
            on = ranks.allreduce(seen.astype(np.int32), _WHAT)
            yield part, ranks.allreduce(own, _WHAT) / np.maximum(on, 1).astype(np.float32), on

    def state(self) -> dict[str, Any]:
        """Everything, as plain arrays; after `gather`, on rank 0."""
        kept = {"scores": self.scores.copy(), "used": self.used.copy(), "fresh": self._fresh.copy()}
        return kept if self._right is None else {**kept, "right": self._right.copy()}

    def restore(self, kept: dict[str, Any], fresh: bool) -> None:
        """Go on with what `state` gave.

        Args:
            fresh: whether this rank has what was not merged yet: one of them does.
        """
        self.scores[:], self.used[:] = kept["scores"], kept["used"]
        self._fresh[:] = kept["fresh"] if fresh else np.nan
        if self._right is not None:
            self._right[:] = kept["right"]


def choose(scores: np.ndarray, rate: float, seed: int, epoch: int, at_random: bool = False) -> Epoch:
    """Which rows are used in an epoch.

    Args:
        scores: float32 (rows,). A row without one (NaN) is used.
        rate: the probability with which a row below the mean is left out, from 0 to less than 1.
        at_random: leave out as many rows, and any of them: what pruning by scores has to be better than.
    """
    rows, known = len(scores), np.isfinite(scores)
    count = int(known.sum())
    if not count or not rate:
        return Epoch.whole(rows)
    mean = np.sum(scores, where=known, dtype=np.float64) / count
    with np.errstate(invalid="ignore"):
        below = np.less(scores, np.float32(mean))
    if at_random:
        rate, below = rate * int(below.sum()) / count, known
    codes = np.where(below, np.int8(SCALED), np.int8(USED))
    for low in range(0, rows, _CHUNK):
        part = slice(low, low + _CHUNK)
        drawn = uniform(np.arange(low, min(low + _CHUNK, rows), dtype=np.uint64), seed, epoch)
        codes[part][below[part] & (drawn < rate)] = LEFT_OUT
    scaled, used = int((codes == SCALED).sum()), int((codes != LEFT_OUT).sum())
    if not used:
        return Epoch.whole(rows)
    scale = 1 / (1 - rate)
    return Epoch(codes, used, scale, used / (used - scaled + scale * scaled))


def tags(codes: np.ndarray, shuffled: tuple[int, int] | None) -> np.ndarray:
    """The rows that are used in an epoch, in their order: n, or -1 - n for one whose gradient is scaled. int64 (used,).

    Args:
        codes: of all rows, see `Epoch`.
        shuffled: a seed and the number of the epoch, of which the order is drawn; None for that of the rows.
    """
    found = np.flatnonzero(codes != LEFT_OUT)
    if shuffled is not None:
        seed, epoch = shuffled
        np.random.default_rng([seed & ((1 << 63) - 1), epoch]).shuffle(found)
    np.subtract(-1, found, out=found, where=codes[found] == SCALED)  # in place: a copy has 8 bytes a row
    return found


def uniform(rows: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """A number from 0 to less than 1 for each row: SplitMix64 (Steele et al., OOPSLA 2014) of its number.

    Args:
        rows: uint64 (n,).
    """
    mask = (1 << 64) - 1
    begin = _mixed(np.array([(seed * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03) & mask], np.uint64))
    return np.asarray((_mixed(rows * np.uint64(0x9E3779B97F4A7C15) + begin) >> np.uint64(11)) * 2.0**-53)


def _mixed(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ (bits >> np.uint64(31)))
