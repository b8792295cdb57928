"""The work on a pipeline that a script iterates by itself: each rank does the maps for its rows of each batch.

Whether a loop is to be shared out is known when it has used its first batch, and the pipeline is on its way by then. So
that gives whole batches, in pieces, until the ranks have shared out a batch; a rank makes its own rows alone from there
on, and whenever the loop walks over the pipeline again. What had been made ahead is whole, and gets sliced.

Relies on (TensorFlow 2.16 to 2.21): `tf.data.Options.experimental_external_state_policy`, public.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.across_rows import whole_batch
from matex_tf.patches.common import row_slicing
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data.local_batch import BatchShapes, LocalBatch
from matex_tf.patches.division import own_rows
from matex_tf.patches.sources import decide, pipeline_ownership, source_sharding
from matex_tf.patches.sources.decide import Source
from matex_tf.patches.sources.reasons import NOTHING, Reason, Why
from matex_tf.patches.turns import from_generator
from matex_tf.state import notes

Site = tuple[str, int]


class Batch(NamedTuple):
    """What a pipeline gives.

    Attributes:
        data: the whole of a batch, or this rank's rows.
        share: which rows these are; None if they are all.
    """

    data: Any
    share: RowRange | None = None

    @property
    def tensors(self) -> list[Any]:
        """Its tensors."""
        return list(tf.nest.flatten(self.data))

    @property
    def total(self) -> int:
        """Rows of the whole batch."""
        return row_slicing.rows_of(self.data) if self.share is None else self.share.total

    @property
    def slices(self) -> tuple[bool, ...]:
        """For each tensor, whether its first axis runs over the rows."""
        return row_slicing.sliceable(self.data)

    def rows_of(self, share: RowRange) -> list[Any]:
        """The tensors, of which those with rows have the rows of a rank."""
        if self.share is not None:
            return self.tensors
        end = share.first + share.high - share.low
        return list(tf.nest.flatten(row_slicing.take(self.data, self.slices, share.first, end)))

    def whole(self) -> list[Any]:
        """The tensors with all rows. All ranks come here."""
        if self.share is None:
            return self.tensors
        return list(tf.nest.flatten(whole_batch.joined(self.data, self.slices, self.share)))


class Division:
    """A pipeline that gives one loop pieces of whole batches, or this rank's rows.

    Attributes:
        dataset: of `LocalBatch`.
        spec: of a batch of the script's.
        divided: how it is divided.
        agreed: whether all ranks make their own rows alone.
        saved: whether the script saves its iterator, and so wants batches that any rank can go on with.
    """

    def __init__(self, divided: own_rows.Divided, spec: Any, whole: tf.Variable):
        self.spec, self.agreed, self.saved = spec, False, False
        self.divided = divided
        self._whole = whole
        self._all_own = False  # whether every rank has its rows alone, of all batches to come
        options = tf.data.Options()
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        self.dataset = divided.dataset.with_options(options)

    def begin(self) -> None:
        """A walk begins."""
        self._all_own = False
        self.ask(self.agreed)

    def ask(self, own: bool) -> None:
        """Ask for this rank's rows alone, or for whole batches, from where the pipeline is now."""
        self._whole.assign(not own or self.saved)

    @property
    def gives_own(self) -> bool:
        """Whether it makes this rank's rows alone."""
        return not bool(self._whole.numpy())

    def batch(self, next_piece: Callable[[], LocalBatch]) -> Batch:
        """The next batch.

        Raises:
            tf.errors.OutOfRangeError: there is none.
        """
        piece = next_piece()
        pieces, taken, rows, total, first = map(int, piece.share.numpy())
        if not pieces:
            return Batch(piece.data, RowRange(0, taken, rows, total, first))
        parts = [piece.data, *(next_piece().data for _ in range(pieces - 1))]

        def join(*leaves: Any) -> Any:
            rows = tf.concat(leaves, 0)[:total]
            return tf.concat([rows[total - first :], rows[: total - first]], 0) if first else rows

        return Batch(tf.nest.map_structure(join, *parts))

    def joined(self, batch: Batch) -> Batch:
        """The whole batch, of the rows that each rank has made; some may have whole batches, which were made ahead. All
        ranks come here."""
        ranks = world.current()
        if not self._all_own:
            everyone = ranks.allgather(batch.share is not None, "agree who has which rows of a batch")
            self._all_own = all(everyone)
            if not any(everyone):
                return batch
        share = batch.share or RowRange.of(
            row_slicing.rows_of(row_slicing.to_tensors(batch.data)), ranks.rank, ranks.size
        )
        return Batch(whole_batch.joined(batch.data, batch.slices, share))


class _Pipeline(decide.Data):
    """The pipeline of a loop, as data to decide about.

    Attributes:
        source: see `decide.Data`.
        divided: how it is divided; or why it is not, as far as this rank sees.
        division: what gives the loop its batches; None if it is not divided.
        decision: that of all ranks; None before there is one.
    """

    source = Source.DIVIDED

    def __init__(self, dataset: Any):
        with tf.device("CPU:0"):
            whole = tf.Variable(True, trainable=False, name="matex_tf_whole")
        self.divided = _divided(dataset, whole)
        self.division = None
        if self.divided.dataset is not None:
            self.division = Division(self.divided, dataset.element_spec, whole)
        self.decision: decide.Decision | None = None

    def unfit(self) -> Why:
        """See `decide.Data`."""
        return NOTHING if self.division is not None else self.divided.kept

    @property
    def as_decided(self) -> own_rows.Divided:
        """How the ranks divide it by now, or why they do not."""
        why = self.unfit() if self.decision is None else self.decision.why
        return self.divided if self.decision is not None and not why else own_rows.Divided(None, [], 0, why)


class _Known(dict[Site, _Pipeline]):
    """Of a pipeline, by loop."""


def of(dataset: Any, site: Site) -> Division | None:
    """The division for a loop, ready for a walk; None if the work on its pipeline is not divided.

    Args:
        dataset: which the script iterates. site: of the loop, its file and line.
    """
    known = notes.of(dataset, _Known)
    if site not in known:
        known[site] = _Pipeline(dataset)
    elif known[site].decision is not None and not decide.asked(Source.DIVIDED):
        with source_sharding.paused():
            from_generator.look_in_loop(dataset)
    division = known[site].division
    if division is not None:
        division.begin()
    return division


def in_graph(dataset: Any) -> tuple[Any, str]:
    """For a loop inside a tf.function: a pipeline of this rank's rows, None if there is none; and `_in_words`."""
    divided = _divided(dataset)
    return divided.dataset, _in_words(divided)


def agree(dataset: Any, site: Site) -> None:
    """A loop is split: from here on a rank makes its own rows, if all ranks can. All ranks come here.

    Args:
        dataset, site: as `of` was given them, on every rank.
    """
    pipeline = notes.of(dataset, _Known)[site]
    if pipeline.decision is None:
        pipeline.decision = decide.decide(pipeline, "a loop")
        if pipeline.division is not None:
            pipeline.division.agreed = not pipeline.decision.why
    if pipeline.division is not None and pipeline.division.agreed:
        pipeline.division.ask(own=True)


def work(dataset: Any, site: Site) -> str:
    """`_in_words` of the loop at `site` over `dataset`; "" before the ranks have agreed."""
    pipeline = notes.of(dataset, _Known)[site]
    return "" if pipeline.decision is None else _in_words(pipeline.as_decided)


def done_by_all(dataset: Any, site: Site) -> str:
    """What of the work on the pipeline `dataset` of the loop at `site` every rank does, and why; in words, empty
    without a reason."""
    return notes.of(dataset, _Known)[site].as_decided.done_by_all()


def _in_words(divided: own_rows.Divided) -> str:
    """Who does the work on a pipeline; "" if there is none, or nothing to say of it."""
    if divided.dataset is not None or divided.kept not in ("", Reason.NO_MAP()):
        return divided.who_does_it()
    return ""


def own_piece(piece: LocalBatch, drop: Callable[[], Any] | None = None) -> tuple[Any, tf.Tensor]:
    """In a graph: this rank's rows, and their share.

    Args:
        piece: the first of a batch.
        drop: takes another one from the pipeline, of which no rows are wanted.
    """
    share = piece.share
    if drop is None:
        return piece.data, share

    def step(number: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies(tf.nest.flatten(drop(), expand_composites=True)):
            return number + 1

    ranks = world.current()
    mine = tf.minimum(ranks.rank * share[3] // ranks.size, share[3] - 1)
    said = "an iterator that another rank has saved goes on inside a tf.function: take --data whole (docs/data.md)"
    with tf.control_dependencies([tf.debugging.assert_equal(share[4], mine, said)]):
        done = tf.while_loop(lambda number: number < share[0] - 1, lambda number: (step(number),), [tf.constant(0)])
    with tf.control_dependencies(tf.nest.flatten(done)):
        return tf.nest.map_structure(lambda leaf: leaf[: share[1]], piece.data), tf.identity(share)


def _against(dataset: Any) -> Why:
    """Why every rank does all of the work on a pipeline, as far as can be said before its parts are looked at."""
    chosen = settings.current()
    against = (
        (chosen.data == "source", Reason.SOURCE_ASKED),
        (chosen.rows == "own" or source_sharding.found(dataset), Reason.OWN_ROWS),
        (pipeline_ownership.unordered(dataset), Reason.ORDER),
        (tf.is_symbolic_tensor(dataset._variant_tensor), Reason.IN_FUNCTION),
    )
    return decide.asked(Source.DIVIDED) or next((reason() for holds, reason in against if holds), NOTHING)


def _divided(dataset: Any, whole: tf.Variable | None = None) -> own_rows.Divided:
    """Args: whole: see `window_rows.parts`; None for a loop inside a tf.function."""
    if why := _against(dataset):
        return own_rows.Divided(None, [], 0, why)
    with source_sharding.paused(), tf.init_scope():
        divided = own_rows.divide(dataset, whole)
    if divided.dataset is None:
        return divided
    if whole is None and notes.has(divided.dataset, BatchShapes):
        return own_rows.Divided(None, [], 0, Reason.SHAPES())
    if not divided.kept and from_generator.generators(dataset):
        return divided._replace(kept=Reason.FIRST_WALK())
    return divided
