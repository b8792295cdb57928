"""The batches of a step function: fetched outside the graph, each with this rank's share of it.

What an iterator yields is one of three things: a batch that every rank has (its share is a slice), `rows.Own` (the
rank's own rows, and how many the batch has in all), or `Own` of unknown total (a pipeline that was sharded before
batching: the ranks count their rows together, and go on until none has any left).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from matex_tf import settings, world
from matex_tf.patches import notes, split
from matex_tf.patches.rows import Own, at_least_one_row
from matex_tf.patches.split import Share

#: Part of an epoch's time, waited for input, from which on a line says so; and the seconds that it must be at least.
_MUCH = 0.1
_MUCH_SECONDS = 1.0
_HINT = "; a tf.data pipeline does all of its work on every rank, and --data source shares out the work (docs/data.md)"


class Feed:
    """Fetches batches for one model, and measures how long that took."""

    def __init__(self, kind: str):
        """Args: kind: "train" or "test"."""
        self.kind = kind
        self._fetched = 0
        self._waited = 0.0
        self._since = 0.0
        self._told = False
        self._owned = False  # whether the rank gets its own rows, and so did no work for others
        self._last: Any = None  # a batch, for the ghost of a rank whose rows have ended

    def batches(self, iterator: Any, steps: int) -> Iterator[tuple[Any, Share]]:
        """The batches of one execution, fewer where the data end.

        Args:
            iterator: a tf.data iterator.
            steps: how many batches of the script's size.
        """
        ranks = world.current()
        per_rank = self.kind == "train" and settings.current().batch == "per-rank"
        spec = getattr(iterator, "element_spec", None)
        for _ in range(max(1, steps // ranks.size) if per_rank else steps):
            begin = time.perf_counter()
            fetched = fetch(iterator, 1)
            if isinstance(spec, Own):
                self._owned = True
                batch = self._own(fetched, spec)
            elif fetched and per_rank:
                batch = _one_of(fetched + fetch(iterator, ranks.size - 1), ranks.rank)
            else:
                batch = (fetched[0], Share.of(split.rows_of(fetched[0]), ranks.rank, ranks.size)) if fetched else None
            self._waited += time.perf_counter() - begin
            self._fetched += 1
            if batch is None:
                return
            yield batch

    def _own(self, fetched: list[Own], spec: Own) -> tuple[Any, Share] | None:
        """A rank's own rows; a ghost where it has none any more and others have."""
        if fetched:
            share = fetched[0].told()
            if share.total >= 0:
                return fetched[0].data, share
        rows = split.rows_of(fetched[0].data) if fetched else -1
        counts = world.current().gather(rows, "count the rows of a batch")
        if max(counts) < 0:
            return None
        if fetched:
            self._last = fetched[0].data
        if rows > 0:
            data = fetched[0].data
        elif self._last is not None:
            data = tf.nest.map_structure(one_row, self._last)
        else:
            data = tf.nest.map_structure(zeros, spec.data)
        return data, Share(0, max(rows, 1), max(rows, 0), sum(count for count in counts if count > 0))

    def given(self, iterator: Iterator[Any]) -> tuple[Any, Share] | None:
        """The batch of a `train_on_batch`: the same on every rank, or rows of the rank's own."""
        ranks = world.current()
        fetched = fetch(iterator, 1)
        if not fetched:
            return None
        data, rows = fetched[0], split.rows_of(fetched[0])
        held = ranks.gather((rows, split.checksum(data)), f"compare the batches of {self.kind}_on_batch")
        if len(set(held)) == 1:
            return data, Share.of(rows, ranks.rank, ranks.size)
        notes.say(f"each rank gives rows of its own to {self.kind}_on_batch: together they are the batch")
        padded = data if rows else tf.nest.map_structure(at_least_one_row, data)
        return padded, Share(0, max(rows, 1), rows, sum(count for count, _ in held))

    def begin_epoch(self) -> None:
        """Start to measure."""
        self._fetched, self._waited, self._since = 0, 0.0, time.perf_counter()

    def end_epoch(self, model: Any) -> None:
        """Say so where much of an epoch went into waiting for batches; all ranks come here."""
        if not self._fetched or self._told:
            return
        ranks = world.current()
        mine = self._waited, time.perf_counter() - self._since
        everyone = ranks.gather(mine, "compare the time spent on input")
        (waited, spent), worst = max((seconds, rank) for rank, seconds in enumerate(everyone))
        if waited > max(_MUCH_SECONDS, _MUCH * spent):  # the same on every rank
            self._told = True
            hint = "" if self._owned else _HINT
            seconds = f"{waited:.1f} of {spent:.1f} s of an epoch"
            notes.say(f"{model.name} waited {seconds} for its input, on rank {worst}{hint}")
        self._fetched = 0


def fetch(iterator: Any, count: int) -> list[Any]:
    """Up to `count` batches, fewer where the data end."""
    batches: list[Any] = []
    for _ in range(count):
        try:
            batches.append(split.to_tensors(next(iterator)))
        except (StopIteration, tf.errors.OutOfRangeError):
            break
    return batches


def own_rows(own: Own) -> tuple[Any, Share]:
    """Rows to predict for, and their share; those of a pipeline are nobody else's."""
    share = own.told()
    if share.total >= 0:
        return own.data, share
    rows = split.rows_of(own.data)
    return tf.nest.map_structure(at_least_one_row, own.data), Share(0, max(rows, 1), rows, rows)


def one_row(leaf: Any) -> Any:
    return leaf if leaf is None else at_least_one_row(leaf[:1])


def zeros(spec: Any) -> Any:
    """One row of zeros for a rank that never had a batch."""
    return tf.zeros([1, *(size or 1 for size in spec.shape[1:])], spec.dtype)


def _one_of(batches: list[Any], rank: int) -> tuple[Any, Share]:
    """The rank's own one of as many batches as there are ranks; a ghost of the first where there is none."""
    rows = [split.rows_of(batch) for batch in batches]
    if rank < len(batches):
        return batches[rank], Share(0, rows[rank], rows[rank], sum(rows))
    return batches[0], Share(0, 1, 0, sum(rows))
