"""A tf.data pipeline that makes the rows of one rank: of every batch those that the rank would have kept of it.

The elements in front of the maps are cut into windows of the size of a batch. Of each window a rank keeps the elements
of its rows (`window_rows`), does the maps with them, and makes its part of the batch. How many rows the whole batch has
travels with each element. A batch is thus what it was, and a rank does 1/p of the work on it.

A rank's part of a full batch has as many rows as that of the rank that has most: where it has one row less, a
neighbour's row is made too, and left out afterwards. So `batch` finds the ends of the parts by counting.

Where the shape of an element is not known beforehand, the ranks compare their parts before each step (`BatchShapes`).

Relies on (TensorFlow 2.16 to 2.21, private): `_input_dataset`, `_batch_size`, `_drop_remainder`, `_padded_shapes`,
`_padding_values` and `_num_parallel_calls` of datasets. Where one is gone nothing is divided.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.common import look_ahead, row_slicing
from matex_tf.patches.data import local_batch
from matex_tf.patches.data.local_batch import BatchShapes, LocalBatch
from matex_tf.patches.division import deferred, first_rows, purity, window_rows
from matex_tf.patches.sources import calls, decide, pipeline_ownership
from matex_tf.patches.sources.decide import Source
from matex_tf.patches.sources.pipeline_ownership import Made, unwrapped
from matex_tf.patches.sources.reasons import NOTHING, Reason, Unfit, Why
from matex_tf.state import notes

#: What makes batches, and what may stand behind it beside a map; the options of all of it are set at its end.
BATCHES, _BEHIND = ("batch", "padded_batch"), ("prefetch", "with_options", "take", "skip", "repeat")


class Divided(NamedTuple):
    """A pipeline of `LocalBatch`, or why there is none.

    Attributes:
        dataset: None where nothing is divided.
        rows: for each tensor of a batch, the rows that the script's pipeline promises; None for any number.
        maps: how many maps are divided.
        kept: why all ranks do what stands in front, or all of it; empty without a reason.
    """

    dataset: Any
    rows: list[int | None]
    maps: int
    kept: Why

    def done_by_all(self) -> str:
        """What of the work every rank does, and why; in words, if there is a reason."""
        if not self.kept:
            return ""
        if self.dataset is None:
            return f"every rank does all of the work on it: {self.kept}"
        return f"all ranks do what comes before it, since {self.kept}"

    def who_does_it(self) -> str:
        """Who does what."""
        if self.dataset is None:
            because = f": {self.kept}" if self.kept else ""
            kept = "its batches" if settings.current().batch == "per-rank" else "its rows of each batch"
            return f"each rank runs the whole tf.data pipeline and keeps {kept} (--data exact){because}"
        maps = f"{self.maps} map{'s' * (self.maps > 1)}"
        every = f"; {self.done_by_all()}" if self.kept else ""
        return f"each rank runs {maps} of the tf.data pipeline for its rows of each batch (--data exact){every}"


def divide(dataset: Any, whole: Any = None, batches_used: int | None = None) -> Divided:
    """The pipeline of this rank's rows.

    Args:
        dataset: the script's.
        whole: see `window_rows.parts`.
        batches_used: in all of a walk, at most; None where nobody knows.
    """
    try:
        return _divide(unwrapped(dataset), whole, batches_used)
    except (AttributeError, TypeError, ValueError) as error:
        return _whole(Reason.UNLIKE(error=f"{type(error).__name__}: {error}"))
    except Unfit as error:
        return _whole(error.why)


def _divide(dataset: Any, whole: Any, batches_used: int | None) -> Divided:
    behind: list[Any] = []
    batched = dataset
    while _may_follow(batched):
        behind.append(batched)
        batched = unwrapped(batched._input_dataset)
    if calls.kind(batched) not in BATCHES:
        return _whole(Reason.BEHIND(kind=calls.words(batched)))
    form = deferred.split(batched._input_dataset)
    if not form.stages:
        return _whole(form.kept or Reason.NO_MAP())
    why = _unfit(batched, behind) or _unordered(form.source)
    if why:
        return _whole(why)
    shapes = _shapes(batched, behind, dataset)
    if whole is not None:
        specs = tf.nest.flatten(dataset.element_spec)
        if shapes is not None or not all(isinstance(spec, tf.TensorSpec) for spec in specs):
            return _whole(Reason.SHAPES())
        form = _in_front(form, behind, int(batched._batch_size))
    ahead = look_ahead.batches_ahead(dataset) if look_ahead.shuffles(dataset) else None
    if ahead is not None:
        behind = [one for one in behind if calls.kind(one) != "prefetch"]
        if batches_used is not None:
            form, behind = _no_further(form, behind, int(batched._batch_size), batches_used + ahead)
    data = _parts(batched, form, 0 if shapes is None else local_batch.remember(shapes), whole)
    for one in reversed(behind):
        data = _again(data, one)
    specs = dataset.element_spec
    leaves = tf.nest.flatten(specs)
    promised = [leaf.shape[0] if leaf.shape.rank else None for leaf in leaves]
    result = deferred.restructured(data, LocalBatch.spec(tf.nest.map_structure(row_slicing.any_rows, specs)), data)
    maps = len(form.stages) + sum(calls.kind(one) == "map" for one in behind)
    options = tf.data.Options().merge(dataset.options())
    options.deterministic = True
    if ahead is not None:
        result = result.prefetch(ahead)
    result = result.with_options(options)
    if shapes is not None:
        notes.put(result, shapes)  # as long as the data are walked over
    return Divided(result, promised, maps, form.kept)


def _no_further(
    form: deferred.Deferred, behind: list[Any], size: int, most: int
) -> tuple[deferred.Deferred, list[Any]]:
    """What makes no more batches than one process: stages of a rank's own rows read ahead by other numbers, so that
    some ranks would draw the order of an epoch that one process has not begun, and others would not.

    Args:
        behind: what stands behind `batch`, the last one first.
        size: of a batch.
        most: batches that one process makes.
    """
    last = next((place for place, one in enumerate(behind) if calls.kind(one) in ("repeat", "skip", "take")), None)
    if last is None:
        return form._replace(source=form.source.take(most * size)), behind
    return form, [*behind[:last], behind[last].take(most), *behind[last:]]


def _again(data: Any, dataset: Any) -> Any:
    """Do with parts of batches what stands behind `batch`."""
    if calls.kind(dataset) == "map":
        return deferred.apply(data, [deferred.stage_of(dataset)], 2)
    return data if calls.kind(dataset) == "with_options" else calls.of(dataset).again(data)


def _in_front(form: deferred.Deferred, behind: list[Any], size: int) -> deferred.Deferred:
    """Do in front of `batch` what counts batches, so that pieces of batches may stand behind it.

    Args:
        behind: what stands behind `batch`, the last one first; loses what is done in front.

    Raises:
        Unfit: batches of several rounds are counted.
    """
    counting = [one for one in behind if calls.kind(one) in ("take", "skip")]
    rounds = [place for place, one in enumerate(behind) if calls.kind(one) == "repeat"]
    if any(behind.index(one) < place for one in counting for place in rounds):
        raise Unfit(Reason.ROUNDS())
    source = form.source
    for one in reversed(counting):
        behind.remove(one)
        count = int(calls.of(one).first("count"))
        count = count if count < 0 else count * size
        source = source.take(count) if calls.kind(one) == "take" else source.skip(count)
    return form._replace(source=source)


def _may_follow(dataset: Any) -> bool:
    """Whether it can stand behind parts of batches as well."""
    kind = calls.kind(dataset)
    if kind != "map":
        return kind in _BEHIND
    function = dataset._map_func.function
    return not purity.effects(function) and purity.is_row_wise(function)


def _whole(why: Why) -> Divided:
    return Divided(None, [], 0, why)


def _unfit(batched: Any, behind: list[Any]) -> Why:
    """Why elements cannot be batched by parts; empty where they can."""
    specs = tf.nest.flatten(batched._input_dataset.element_spec)
    if not all(isinstance(spec, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)) for spec in specs):
        return Reason.NO_TENSORS()
    if not all(spec.shape.is_fully_defined() for spec in specs if isinstance(spec, tf.SparseTensorSpec)):
        return Reason.SPARSE_SHAPES()
    if _padded(batched, behind) is None:
        return Reason.PADDED()
    return NOTHING


def _padded(batched: Any, behind: list[Any]) -> dict[int, Any] | None:
    """The parts of a batch that are padded to the longest row, by place: with which values.

    Args:
        batched: what makes the batches.
        behind: what stands behind it, the last one first.

    Returns:
        None where a map computes with what has been padded.
    """
    if calls.kind(batched) == "batch":
        return {}
    shapes, values = map(tf.nest.flatten, (batched._padded_shapes, batched._padding_values))
    parts = enumerate(zip(shapes, values, strict=True))
    padded = {place: value for place, (shape, value) in parts if -1 in shape.numpy().tolist()}
    for one in reversed(behind):
        if calls.kind(one) == "map":
            places = purity.passed_on(one._map_func.function, padded)
            if places is None:
                return None
            padded = {number: padded[place] for number, place in places.items()}
    return padded


def _shapes(batched: Any, behind: list[Any], dataset: Any) -> BatchShapes | None:
    """What the parts of a batch must have in common; None where all shapes are known."""
    padded = _padded(batched, behind)
    if padded:
        return BatchShapes([], padded)
    leaves = enumerate(tf.nest.flatten(dataset.element_spec))
    is_open = [
        place for place, leaf in leaves if isinstance(leaf, tf.TensorSpec) and not leaf.shape[1:].is_fully_defined()
    ]
    return BatchShapes(is_open, {}) if is_open else None


def _unordered(dataset: Any) -> Why:
    """Why elements may come in another order on each rank; empty where they may not."""
    is_open = any(getattr(one, "_deterministic", None) == "false" for one in pipeline_ownership.every(dataset))
    return Reason.UNORDERED() if is_open else NOTHING


def _parts(batched: Any, form: deferred.Deferred, number: int, whole: Any) -> Any:
    """This rank's part of each batch, the flat tensors of `LocalBatch`, whose origin has this number."""
    ranks = world.current()
    size = int(batched._batch_size)
    most = window_rows.most_rows(size)
    uneven = size % ranks.size != 0
    parts, stages = window_rows.parts(batched, form, whole)
    if stages is not None:
        parts = deferred.batched(deferred.apply(parts, stages, 1), batched, most, window_rows.SHARE)
    origin = [number, ranks.generation]

    @tf.autograph.experimental.do_not_convert
    def finish(share: Any, *tensors: Any) -> Any:
        if stages is not None:
            share = share[0]
        if uneven:
            taken = tf.where(share[0] > 0, most, share[1])
            tensors = tuple(tensor[:taken] for tensor in tensors)
        return (share, tf.constant(True), *tensors, tf.constant(origin, tf.int64), tf.constant([], tf.int64))

    return parts.map(finish)


class Pipeline(decide.Data):
    """A pipeline of `fit`, `evaluate` or `predict`, batches that every rank has, as data to decide about.

    Pipelines over files may be a rank's own although they look alike (`pipeline_ownership`). So before the work on one
    is divided the ranks compare rows of it (`first_rows`), as they compare the first batch if each runs the whole.

    Attributes:
        source: see `decide.Data`.
        divided: this rank's rows of it, once somebody has asked whether they can be had.
    """

    source = Source.DIVIDED

    def __init__(self, dataset: Any, made: Made, batches_used: int | None):
        self._dataset, self._made, self._rows, self._used = dataset, made, None, batches_used
        self.divided = _whole(NOTHING)

    def unfit(self) -> Why:
        """See `decide.Data`."""
        if not self._made.ordered:
            return Reason.ORDER()
        self.divided = divide(self._dataset, batches_used=self._used)
        compares = self._made.source is not pipeline_ownership.Source.SAME and settings.current().rows == "auto"
        if compares and self.divided.dataset is not None:
            try:
                self._rows = first_rows.pipeline(self._dataset)
            except Unfit as error:
                return error.why
        return NOTHING if self.divided.dataset is not None else self.divided.kept

    def compare(self, what: str) -> Why:
        """See `decide.Data`."""
        return decide.compared(lambda: decide.first_of(self._rows), self._made, what)


def decided(dataset: Any, made: Made, what: str, batches_used: int | None) -> Divided:
    """The pipeline of this rank's rows; `dataset` None in it where every rank runs the whole. All ranks come here.

    Args:
        dataset: batches that every rank has.
        made: what is known of it.
        what: whose data these are: "fit", "evaluate" or "predict".
        batches_used: see `divide`.
    """
    pipeline = Pipeline(dataset, made, batches_used)
    decision = decide.decide(pipeline, what)
    return _whole(decision.why) if decision.source is Source.WHOLE else pipeline.divided
