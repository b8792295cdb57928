"""The batches of a step function: fetched outside the graph, each with this rank's share of it.

What an iterator yields is one of three things: a batch that every rank has (its share is a slice),
`local_batch.LocalBatch` (the rank's own rows, and how many the batch has in all), or rows of the rank's own, as is
known of their pipeline, or found from the first batch: the ranks count their rows together, and go on until none has
any left. Rows are shared out when the step runs, and again where it has to be run again because a rank has died.

Relies on (TensorFlow 2.16 to 2.21, private, done without where they are gone): `OwnedIterator._iterator_resource`,
`_flat_output_types`, `_flat_output_shapes` and `_dataset`.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.patches.common import log_once, row_slicing
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.local_batch import BatchShapes, Gatherer, LocalBatch, PassedRows, at_least_one_row, came_from
from matex_tf.patches.data.lost_rows import Orphans
from matex_tf.patches.data.row_batches import RowIterator
from matex_tf.patches.sources import batch_ownership as guesses
from matex_tf.patches.sources.decide import Price
from matex_tf.patches.sources.pipeline_ownership import Made
from matex_tf.state import notes, run_state
from matex_tf.watching.meter import Meter

_PARTS = ("_iterator_resource", "_flat_output_types", "_flat_output_shapes")

#: A batch: each call gives what this rank takes of it, and its share, among the ranks that there are.
Batch = Callable[[], tuple[Any, RowRange]]

#: Part of an epoch's time, waited for input, from which on a line says so; and the seconds that it must be at least.
_MUCH = 0.1
_MUCH_SECONDS = 1.0
#: Specs of batches that ranks can take of rank 0.
_SPECS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)
_HINT = "; a line at the start of fit says why every rank does all of the work on it (docs/data.md)"


class DoneByAll(str):
    """What of a pipeline every rank does, and why, in words for a line: a note on the pipeline."""


class _Quick(NamedTuple):
    """Of an iterator: its `next` without what makes that slow; None if there is none."""

    next: Callable[[], Any] | None


class CountedRows:
    """Counts the rows of each batch over the ranks, and has a row for a rank that has none."""

    def __init__(self) -> None:
        self._last: Any = None

    def share(self, data: Any, rows: int) -> RowRange | None:
        """This rank's part of the batch; None where no rank has a batch any more. Every rank must call.

        Args:
            data: the rank's batch; None where it has none any more.
            rows: of it; -1 where there is none.
        """
        counts = world.current().allgather(rows, "count the rows of a batch")
        if max(counts) < 0:
            return None
        if data is not None:
            self._last = data
        return RowRange.own(counts, world.current().rank)

    def ghost(self, spec: Any) -> Any:
        """One row for a rank that has none: of its last batch, or zeros where it never had one.

        Args:
            spec: of a batch.
        """
        if self._last is not None:
            return tf.nest.map_structure(_one_row, self._last)
        return tf.nest.map_structure(_zeros, spec)


def _one_row(leaf: Any) -> Any:
    return leaf if leaf is None else at_least_one_row(leaf[:1])


def _zeros(spec: Any) -> Any:
    return tf.zeros([1, *(size or 1 for size in spec.shape[1:])], spec.dtype)


class BatchSource:
    """Fetches batches for one model, and measures how long that took."""

    def __init__(self, kind: str):
        """Args: kind: "train" or "test"."""
        self.kind = kind
        self._fetched = 0
        self._waited = 0.0
        self._since = 0.0
        self._said = self._look_again = False
        self._price: Price | None = None  # of data whose batches every rank makes
        self._by_all: str | None = None  # what of the work on the data every rank does, where that is known
        self._owned = False  # whether the rank gets its own rows, and so did no work for others
        self._ranks = 0  # with batches of the script's size for each rank, how many those are
        self._ring: PassedRows | None = None  # where rows go round among the ranks
        self._origin: Any = None  # of rows that it has gathered
        self._counter = CountedRows()
        self.own_on_batch = False  # whether the ranks have given rows of their own to `train_on_batch`

    def batches(self, iterator: Any, steps: int) -> Iterator[Batch]:
        """The batches of one execution, fewer where the data end.

        Args:
            iterator: a tf.data iterator.
            steps: how many batches of the script's size.
        """
        per_rank = self.kind == "train" and settings.current().batch == "per-rank"
        if per_rank:
            self._ranks = self._ranks or world.current().size
        spec = getattr(iterator, "element_spec", None)
        dataset = getattr(iterator, "_dataset", iterator)
        self._by_all = notes.found(dataset, DoneByAll)
        self._price = notes.found(dataset, Price)
        for _ in range(max(1, steps // self._ranks) if per_rank else steps):
            begin = time.perf_counter()
            if self._ring is not None:
                self._ring.before_batch()
            fetched = fetch(iterator, 1)
            self._compare(fetched, spec)
            if isinstance(spec, LocalBatch):
                self._owned = True
                self._origin = fetched[0].origin if fetched else self._origin
                self._go_round(fetched)
                batch = self._own(fetched, spec)
            elif (finding := self._find(iterator, fetched)).own:
                self._owned = True
                batch = self._counted(fetched[0] if fetched else None, spec)
            elif finding.of_first_rank and not per_rank:
                data = _of_first_rank(fetched, spec)
                batch = None if data is None else functools.partial(_part_of, data)
            elif fetched and per_rank:
                batch = functools.partial(_one_of, fetched + fetch(iterator, self._ranks - 1))
            else:
                batch = functools.partial(_part_of, fetched[0]) if fetched else None
            self._waited += (waited := time.perf_counter() - begin)
            run_state.current().part(Meter).waited_for_input(waited)
            self._fetched += 1
            if batch is None:
                return
            yield batch

    def _compare(self, fetched: list[Any], spec: Any) -> None:
        """Once a rank has come: its next batch is that of the others."""
        if self._look_again:
            self._look_again = False
            data = [one.batch if isinstance(spec, LocalBatch) else one for one in fetched]
            world.current().compare(row_slicing.checksum(data), f"compare the rows of the next batch of {self.kind}")

    def _go_round(self, fetched: list[LocalBatch]) -> None:
        """Rows that have been trained on travel while the next batch is."""
        if fetched and self.kind == "train":
            source = came_from(fetched[0].origin)
            self._ring = source if isinstance(source, PassedRows) else None
            if self._ring is not None:
                self._ring.after_batch(fetched[0].batch.numpy())

    def _find(self, iterator: Any, fetched: list[Any]) -> guesses.Finding:
        """Whether batches are the rank's own, from the first one of each pipeline."""
        dataset = getattr(iterator, "_dataset", iterator)
        found = notes.found(dataset, guesses.Finding)
        if found is None:
            purpose = {"train": "fit", "test": "evaluate"}[self.kind]
            data = fetched[0] if fetched else None
            made = notes.found(dataset, Made) or guesses.UNKNOWN
            found = guesses.look(data, made, f"compare the first batch of {purpose}")
            if _first_rank_has_the_say(found, made, getattr(iterator, "element_spec", None)):
                found = dataclasses.replace(found, of_first_rank=True)
            guesses.tell(found, f"the data of {purpose}")
            notes.put(dataset, found)
        return found

    def _own(self, fetched: list[LocalBatch], spec: LocalBatch) -> Batch | None:
        """A rank's own rows, of a batch whose size is known or has to be counted."""
        if fetched and (share := fetched[0].row_range()).total >= 0:
            return functools.partial(_gathered, fetched[0], share)
        return self._counted(fetched[0].data if fetched else None, spec.data)

    def _counted(self, data: Any, spec: Any) -> Batch | None:
        """A rank's own rows, None where it has none any more; a ghost where others have."""
        rows = -1 if data is None else row_slicing.rows_of(data)
        share = self._counter.share(data, rows)
        if share is None:
            return None
        if rows <= 0:
            data = self._counter.ghost(spec)
        return functools.partial(_unchanging, data, share, world.current().generation)

    def given(self, data: Any, call: Any = None) -> Batch:
        """The batch of a `train_on_batch`: the same on every rank, or rows of the rank's own.

        Args:
            data: with tensors as leaves. call: a small one, which learns of what is found.
        """
        ranks, rows = world.current(), row_slicing.rows_of(data)
        # A few labels may be the same by chance: what has been the rank's own stays so.
        purpose = f"compare the batches of {self.kind}_on_batch"
        found = guesses.look(data, guesses.UNKNOWN, purpose, known_as_own=self.own_on_batch)
        if not self.own_on_batch:
            self.own_on_batch = found.own
            guesses.tell(found, f"{self.kind}_on_batch")
        if call is not None:
            call.same = found.same and not found.own
        if not found.own:
            return functools.partial(_part_of, data)
        padded = data if rows else tf.nest.map_structure(at_least_one_row, data)
        share = RowRange.own(found.counts, ranks.rank)
        return functools.partial(_unchanging, padded, share, ranks.generation)

    def begin_fit(self) -> None:
        """Forget how many ranks there were."""
        self._ranks = 0

    def end_fit(self) -> None:
        """Let rows that travel arrive."""
        if self._ring is not None:
            self._ring.rest()
            self._ring.close()
            self._ring = None

    def begin_epoch(self) -> None:
        """Start to measure; an epoch begins with all rows in their places."""
        if self._ring is not None:
            self._ring.rest()
        self._fetched, self._waited, self._since = 0, 0.0, time.perf_counter()
        if self._price is not None:
            self._price.begin()

    @property
    def of_each_rank(self) -> bool:
        """Whether the rows of the last batch were those of a rank, which no other one can have."""
        source = None if self._origin is None else came_from(self._origin)
        return self._owned and not isinstance(source, (Gatherer, Orphans))

    def say_again(self) -> None:
        """A rank has come that has not heard what was said, and of which nothing is known."""
        self._said, self._look_again = False, True
        notes.clear(guesses.Finding)

    def end_epoch(self, model: Any) -> None:
        """Say so where much of an epoch went into waiting for batches; all ranks come here."""
        if not self._fetched or self._said:
            return
        ranks = world.current()
        made = 0.0 if self._price is None else self._price.seconds
        mine = self._waited, time.perf_counter() - self._since, made
        everyone = ranks.allgather(mine, "compare the time spent on input")
        made, whole, maker = max((made, spent, rank) for rank, (_, spent, made) in enumerate(everyone))
        waited, spent, worst = max((waited, spent, rank) for rank, (waited, spent, _) in enumerate(everyone))
        if self._price is not None and is_much(made, whole):
            self._said = True
            log_once.log(
                f"{model.name}: {100 * made / whole:.0f} % of the time of an epoch goes into making input that every "
                f"rank makes ({made:.1f} of {whole:.1f} s on rank {maker}): {self._price.why} (docs/data.md)"
            )
        elif is_much(waited, spent):  # the same on every rank
            self._said = True
            hint = "" if self._owned else _HINT
            if self._by_all is not None:
                hint = f"; {self._by_all} (docs/data.md)"
            log_once.log(
                f"{model.name}: input takes {100 * waited / spent:.0f} % of a step: "
                f"rank {worst} waited {waited:.1f} of {spent:.1f} s of an epoch for it{hint}"
            )
        self._fetched = 0


def is_much(waited: float, spent: float) -> bool:
    """Whether so many seconds of waiting for input, `waited`, of those `spent`, are worth a line."""
    return waited > max(_MUCH_SECONDS, _MUCH * spent)


def fetch(iterator: Any, count: int) -> list[Any]:
    """Up to `count` batches of an `iterator`, with tensors as leaves; fewer where the data end."""
    batches: list[Any] = []
    take_next = _quick(iterator) or (lambda: row_slicing.to_tensors(next(iterator)))
    for _ in range(count):
        try:
            batches.append(take_next())
        except (StopIteration, tf.errors.OutOfRangeError):
            break
    return batches


def _quick(iterator: Any) -> Callable[[], Any] | None:
    """`next` of a tf.data iterator over dense tensors, without what makes it slower than a small step; else None."""
    if isinstance(iterator, RowIterator):
        return iterator.__next__
    if not isinstance(iterator, tf.data.Iterator):
        return None
    return notes.of(iterator, _Quick, lambda: _Quick(_make_quick(iterator))).next


def _make_quick(iterator: Any) -> Callable[[], Any] | None:
    spec = iterator.element_spec
    leaves = tf.nest.flatten(spec)
    parts = [getattr(iterator, name, None) for name in _PARTS]
    if None in parts or not all(isinstance(leaf, tf.TensorSpec) for leaf in leaves):
        return None
    resource, types, shapes = parts
    columns = spec.data if isinstance(spec, LocalBatch) else spec
    plain = isinstance(columns, tuple) and all(isinstance(leaf, tf.TensorSpec) for leaf in columns)

    def pack(flat: list[Any]) -> Any:
        return tuple(flat) if plain else tf.nest.pack_sequence_as(columns, flat)

    def take_next() -> Any:
        flat = tf.raw_ops.IteratorGetNext(iterator=resource, output_types=types, output_shapes=shapes)
        if isinstance(spec, LocalBatch):
            return LocalBatch(flat[0], flat[1], pack(flat[2:-2]), flat[-2], flat[-1])
        return pack(flat)

    return take_next


def own_rows(own: LocalBatch) -> tuple[Any, RowRange]:
    """Rows to predict for, and their share; those of a pipeline or a shard are nobody else's."""
    share = own.row_range()
    if bool(own.whole):
        return _gathered(own, share)
    if share.total >= 0:
        return own.data, share
    rows = row_slicing.rows_of(own.data)
    return tf.nest.map_structure(at_least_one_row, own.data), RowRange.own([rows], 0)


def whole(batch: Batch) -> Any:
    """A batch that every rank has, as it is; None for rows of the rank's own."""
    return batch.args[0] if isinstance(batch, functools.partial) and batch.func is _part_of else None


def _part_of(data: Any) -> tuple[Any, RowRange]:
    """A batch that every rank has."""
    ranks = world.current()
    return data, RowRange.of(row_slicing.rows_of(data), ranks.rank, ranks.size)


def _gathered(own: LocalBatch, share: RowRange) -> tuple[Any, RowRange]:
    """A batch of which every rank has gathered its own rows: this share, or another where a rank has died since."""
    now = own.reshard()
    shapes = came_from(own.origin)
    data = shapes.common(now.data) if isinstance(shapes, BatchShapes) else now.data
    return data, share if now is own else now.row_range()


def _unchanging(data: Any, share: RowRange, generation: int) -> tuple[Any, RowRange]:
    """Rows that only this rank has."""
    if generation != world.current().generation:
        raise MatexError("a rank has died that held rows of the batch which no other rank has.")
    return data, share


def _one_of(batches: list[Any]) -> tuple[Any, RowRange]:
    """The rank's own one of several batches; a ghost of the first where there is none.

    Where a rank has died there may be more batches than ranks: then they share out the rows of all.
    """
    ranks = world.current()
    rows = [row_slicing.rows_of(batch) for batch in batches]
    if len(batches) > ranks.size:
        return _part_of(tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *batches))
    if ranks.rank < len(batches):
        return batches[ranks.rank], RowRange.own(rows, ranks.rank)
    return batches[0], RowRange.own([*rows, 0], len(rows))


def _first_rank_has_the_say(finding: guesses.Finding, made: Made, spec: Any) -> bool:
    """Whether the first batch shows that ranks shall take rank 0's; the same on every rank.

    Args:
        finding: what it has shown.
        made: what the data are made of.
        spec: of a batch.
    """
    differs = bool(finding.differs) and not finding.own and made.python and settings.current().rows == "auto"
    return differs and world.current().guard is None and all(isinstance(one, _SPECS) for one in tf.nest.flatten(spec))


def _of_first_rank(fetched: list[Any], spec: Any) -> Any:
    """Rank 0's batch; None where it has none any more. All ranks come here.

    Args:
        fetched: this rank's, or nothing.
        spec: of a batch.
    """
    mine = None
    if fetched and world.current().rank == 0:
        mine = [np.asarray(leaf) for leaf in tf.nest.flatten(fetched[0], expand_composites=True)]
    leaves = world.current().broadcast(mine, "take the batch of rank 0")
    if leaves is None:
        return None
    tensors = [tf.convert_to_tensor(leaf) for leaf in leaves]
    return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)
