"""One walk of the script over a batched pipeline: which batches are shared out, and how.

The first batch of a loop is given to the script whole, on every rank. If the script then computes gradients with it, or
feeds a metric, the loop is one to share out, and from the second batch on, and from the first when it walks over this
pipeline again, each rank gets its rows. A loop that does neither (it gathers labels, or draws pictures) stays as it is.
Both are exact: the gradients of a batch that all ranks have are the same on all, and what it adds to a metric is
counted once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.checking import one_rank
from matex_tf.patches.common import log_once, row_slicing, sharing_report
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data import batches
from matex_tf.patches.data.batches import CountedRows
from matex_tf.patches.loops import divided, first_step, position, replica_sync
from matex_tf.patches.sources import batch_ownership, pipeline_ownership, source_sharding
from matex_tf.state import notes, run_state
from matex_tf.watching.meter import Meter

_LOOKING, _SHARED, _OWN_BATCHES, _PARTITIONED = "looking", "shared", "own", "partitioned"
#: Batches of a walk with which ranks that take whole batches ask whether to divide the work on them.
_ASKED_AT = frozenset(4**power for power in range(1, 16))


class _Walks:
    """Of a pipeline: what is known of the loops over it.

    Attributes:
        shared: those that are to be shared out.
        partitioned: those that compiled steps share out.
        told: those of which a line has said that they wait for it.
        own: whether ranks have batches of their own.
        made: what the pipeline is made of, once that is known.
    """

    def __init__(self) -> None:
        self.shared: set[tuple[str, int]] = set()
        self.partitioned: set[tuple[str, int]] = set()
        self.told: set[tuple[str, int]] = set()
        self.own = False
        self.made: pipeline_ownership.Made | None = None


class _Open:
    """Of a loop: that the script is in it."""


class SharedLoop:
    """The state of one walk.

    Args:
        dataset: the pipeline; its elements are batches.
        site: file and line of the loop.
        division: what makes its batches, where ranks divide the work on them.

    Attributes:
        whole_rows: rows of the batch that the script has, if every rank has all of it; 0 otherwise.
        partitioned: whether a compiled step has shared out such a batch by itself; see `compiled`.
    """

    def __init__(self, dataset: Any, site: tuple[str, int], division: divided.Division | None = None):
        self._site = site
        self._division = division
        self._walks = notes.of(dataset, _Walks)
        self._batches = 0
        self._dataset = dataset
        self._mode = _OWN_BATCHES if source_sharding.found(dataset) else ""
        if division is not None and division.agreed:
            self._mode = _PARTITIONED if site in self._walks.partitioned else _SHARED
        self._before = position.BEGINNING
        self._touched = 0
        self._spec = dataset.element_spec
        self._counter = CountedRows()
        self._waited, self._since = 0.0, 0.0
        self._ended = False
        self._checked = settings.current().check == "off"
        self.given: first_step.GivenBatch | None = None
        self.whole_rows, self.partitioned = 0, False
        self._has_rows = False  # the script has the rank's rows of a batch, or compiled steps take them
        self._gradients = 0

    def next(self, fetch: Callable[[], Any]) -> Any:
        """What the script gets: its rows of the next batch, or the whole of it.

        Raises:
            tf.errors.OutOfRangeError: there is no batch left, on any rank.
        """
        if self._ended:
            return fetch()
        ranks = world.current()
        self._done_with()
        first = self._batches == 0
        if first:
            self._before = position.read()
            self._touched = position.touches()
            ranks.step_signature = ()  # that of a loop left in the middle, which Python has yet to collect
            replica_sync.merge_statistics()
            notes.put(self, _Open())
        meter, begin = run_state.current().part(Meter), time.perf_counter()
        try:
            batch = divided.Batch(fetch()) if self._division is None else self._division.batch(fetch)
        except tf.errors.OutOfRangeError:
            if first and not self._mode:
                self._mode = self._look(None)
            data = self._at_end()
            if data is None:
                raise
            return data
        meter.waited_for_input(waited := time.perf_counter() - begin)
        if not first:  # a walk begins with what has no step beside it
            self._waited += waited
        else:
            self._since = time.perf_counter()
        self._batches += 1
        if self._mode == _PARTITIONED and self._division is not None and self._division.agreed:
            batch = self._division.joined(batch)
        data = batch.data
        if first and not self._mode and batch.share is None:
            self._mode = self._look(row_slicing.to_tensors(data))
            self._touched = position.touches()
        elif self._is_partitioned():
            self._mode = _PARTITIONED
            self._walks.partitioned.add(self._site)
        elif batch.share is not None or (self._mode == _LOOKING and position.touches() != self._touched):
            self._mode = _SHARED
            self._walks.shared.add(self._site)
        rows = row_slicing.rows_of(row_slicing.to_tensors(data)) if batch.share is None else batch.share.total
        place = f"batch {self._batches} of the loop at {self._place()}"
        if self._mode == _OWN_BATCHES:
            ranks.at(place)
            return self._own(data, rows)
        ranks.at(place, f"a batch of {rows} rows")
        if self._mode == _PARTITIONED:
            self._note_split(rows)
            self._divide_if_it_pays()
            return self._whole(data, rows, position.OUTSIDE)
        if self._mode == _LOOKING or rows == 0:
            if not self._checked:
                self.given = first_step.GivenBatch(self, f"the loop at {self._place()}", data)
            return self._whole(data, rows, position.WHOLE)
        self._note_split(rows)
        share = batch.share or RowRange.of(rows, ranks.rank, ranks.size)
        position.enter(position.SPLIT, share.rows, share.total, share.high - share.low, share.first, self)
        divided.agree(self._dataset, self._site)
        if batch.share is not None:
            return data
        own = row_slicing.take(data, row_slicing.sliceable(data), share.low, share.high)
        if not self._checked:
            self._checked = True
            self.given = first_step.GivenBatch(self, f"the loop at {self._place()}", data, own)
        return own

    @property
    def gives_rows(self) -> bool:
        """Whether the script has the rank's rows of its batches."""
        return self._mode in (_SHARED, _OWN_BATCHES)

    def _is_partitioned(self) -> bool:
        """Whether compiled steps share out the batches of this loop: one has done so, and no gradient is taken beside
        them, which the ranks would not share out."""
        if self._mode == _PARTITIONED:
            return True
        return self._mode == _LOOKING and self.partitioned and position.eager_gradients() == self._gradients

    def _whole(self, data: Any, rows: int, kind: int) -> Any:
        """The batch, which every rank has all of."""
        self.whole_rows, self._gradients = rows, position.eager_gradients()
        position.enter(kind, max(rows, 1), max(rows, 1), max(rows, 1), 0, self)
        return data

    def _divide_if_it_pays(self) -> None:
        """Let each rank make its rows of the next batches, and join them, if ranks wait for input for long."""
        undivided = self._division is None or not self._division.agreed
        if undivided and world.current().guard is None and self._batches in _ASKED_AT:
            waits = batches.is_much(self._waited, time.perf_counter() - self._since)
            if any(world.current().allgather(waits, "agree whether input takes long")):
                divided.agree(self._dataset, self._site)

    def _note_split(self, rows: int) -> None:
        """Note that a batch is split."""
        run_state.current().part(Meter).count(rows, "loop")
        self._has_rows = True
        told = sharing_report.held_whole if self._mode == _PARTITIONED else sharing_report.uncovered
        told("a loop of the script's own")
        sharing_report.shared(training=False)

    def _done_with(self) -> None:
        """The script has done with the last batch."""
        self.whole_rows = 0
        given, self.given = self.given, None
        why_not = "" if given is None else given.leave()
        if self._has_rows:
            self._has_rows = False
            work, size = divided.work(self._dataset, self._site), world.current().size
            split = f"{self._place()}: each batch of this loop is split among {size} ranks (--shard-loops)"
            log_once.log(split + (work and f", and {work}"), why_not and f". {why_not}")

    def close(self) -> None:
        """The script has left the loop."""
        if not self._ended:
            self._ended = True
            self._done_with()
            notes.drop(self, _Open)
            run_state.current().part(Meter).end_training()
            if position.leave(self, self._before):
                world.current().step_signature = ()

    def _place(self) -> str:
        return in_words(self._site)

    def _look(self, data: Any) -> str:
        """Whether the ranks have the same batches, or each has its own; data: the first, or None without any."""
        dataset = self._dataset
        if self._walks.own:
            return _OWN_BATCHES
        finding = batch_ownership.look(data, made_of(dataset), "compare the first batch of a loop")
        batch_ownership.tell(finding, f"the loop at {self._place()}")
        if finding.own:
            self._walks.own = True
            return _OWN_BATCHES
        if self._site in self._walks.partitioned:
            return _PARTITIONED
        return _SHARED if self._site in self._walks.shared else _LOOKING

    def _own(self, data: Any, rows: int) -> Any:
        """A batch of the rank's own rows: the ranks count them together. -1: there are none any more."""
        share = self._counter.share(data, rows)
        if share is None:
            return None
        sharing_report.shared(training=False)
        # A step needs a row to work on; a loop that only looks at the data gets what there is.
        trains = self._site in self._walks.shared or position.touches() != self._touched
        if trains and not self._checked:
            self._checked = True
            one_rank.say_why_not(f"the loop at {self._place()}", "each rank has rows of its own")
        if trains:
            self._walks.shared.add(self._site)
        if rows < 0 or (rows == 0 and trains):
            data = self._counter.ghost(self._spec)
        position.enter(position.SPLIT, share.rows, max(1, share.total), share.high, share.first, self)
        return data

    def _at_end(self) -> Any:
        """The data have ended here; where other ranks have rows left, this one goes on as a ghost."""
        if self._mode == _OWN_BATCHES:
            world.current().at(f"the end of the loop at {self._place()}")
            data = self._own(None, -1)
            if data is not None:
                return data
        self.close()
        if self._mode == _SHARED:
            self._tell_of_waiting()
        replica_sync.merge_statistics()
        return None

    def _tell_of_waiting(self) -> None:
        """Say so where much of a walk went into waiting for batches."""
        spent = time.perf_counter() - self._since
        kept = divided.done_by_all(self._dataset, self._site)
        if batches.is_much(self._waited, spent) and self._site not in self._walks.told:
            self._walks.told.add(self._site)
            log_once.log(
                f"{self._place()}: input takes {100 * self._waited / spent:.0f} % of a step: rank 0 waited "
                f"{self._waited:.1f} of {spent:.1f} s of a pass over the data for it"
                + (f"; {kept} (docs/data.md)" if kept else "")
            )


def with_whole_batches() -> list[SharedLoop] | None:
    """The loops that the script is in and of whose batches every rank has all; None if a rank has rows of its own."""
    loops = notes.having(_Open)
    if position.read()[0] == position.SPLIT or any(one.gives_rows for one in loops):
        return None
    return [one for one in loops if one.whole_rows]


def in_words(site: tuple[str, int]) -> str:
    """Where a loop stands."""
    return f"{os.path.basename(site[0])}:{site[1]}"


def made_of(dataset: Any) -> pipeline_ownership.Made:
    """What is known of a pipeline before it is read. All ranks come here."""
    walks = notes.of(dataset, _Walks)
    if walks.made is None:
        walks.made = pipeline_ownership.look(dataset)
    return walks.made


def is_own(dataset: Any) -> bool:
    """Whether a pipeline is known to yield the rank's own rows before it is read. All ranks come here."""
    setting = settings.current().rows
    if setting == "own" or source_sharding.found(dataset) or notes.of(dataset, _Walks).own:
        return True
    if setting == "shared":
        return False
    with tf.init_scope():
        return made_of(dataset).source is pipeline_ownership.Source.OWN


def shares_out(dataset: Any, batched: bool) -> bool:
    """Whether walks over a pipeline, `dataset`, are to be shared out at all; `batched`: whether it gives batches."""
    if not position.active():
        return False
    if not settings.current().shares_loops:
        log_once.log(
            "--shard-loops off: each rank's batches are its own, and gradients are averaged with equal weights"
        )
        return False
    return batched or bool(source_sharding.found(dataset))
