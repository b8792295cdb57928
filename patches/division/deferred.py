"""A tf.data pipeline as what stands in front of its maps, and the maps that can be done later, or not at all.

A map with a function that only computes (`purity`) gives an element the same wherever it stands. So
`map(f).take(k)` is `take(k).map(f)`, and so on for `skip`, `repeat`, `shard`, `zip`, `enumerate` and `prefetch`. What
stands in front is kept as it is, the same object: it may have a state, such as how often it has shuffled.

All is done on flat elements, tuples of tensors, in which a ragged or sparse tensor is one `tf.variant`.

Relies on (TensorFlow 2.16 to 2.21, private): `_input_dataset`, `_inputs`, `_map_func` (its `function`),
`_num_parallel_calls`, `_mapped_dataset` and `_variant_tensor` of datasets;
`tensorflow.python.data.util.structure.get_flat_tensor_specs`. Where one is gone nothing is deferred. What a
dataset does is said by the call that made it (`calls`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.data.util import structure

from matex_tf.patches.division import csv_lines, drawn_first, purity
from matex_tf.patches.sources import calls
from matex_tf.patches.sources.pipeline_ownership import inputs_of, unwrapped
from matex_tf.patches.sources.reasons import NOTHING, Reason, Why
from matex_tf.patches.turns import from_generator
from matex_tf.state import notes


class Stage(NamedTuple):
    """A map that is done later.

    Attributes:
        function: a concrete function of tensors.
        first: the place in the element from which on it takes tensors.
        takes: how many.
        parallel: `num_parallel_calls`; None without.
        of_vectors: the same function where it takes one tensor, of many in a vector; None where there is none.
    """

    function: Any
    first: int
    takes: int
    parallel: int | None
    of_vectors: Any = None


class Deferred(NamedTuple):
    """A pipeline in two parts.

    Attributes:
        source: what stands in front; its elements are tuples of tensors.
        stages: the maps behind it.
        kept: why the last map that could not be deferred is not; empty without one.
    """

    source: Any
    stages: tuple[Stage, ...]
    kept: Why = NOTHING


def split(dataset: Any) -> Deferred:
    """A pipeline in two parts; without stages where nothing can be deferred."""
    try:
        return _split(unwrapped(dataset))
    except AttributeError:
        return Deferred(flat(dataset), ())


def flat(dataset: Any) -> Any:
    """The elements of a dataset as tuples of tensors."""
    specs = tuple(structure.get_flat_tensor_specs(dataset.element_spec))
    return restructured(dataset, specs, dataset)


@dataclasses.dataclass(frozen=True)
class _Origin(notes.Inside):
    """Of a dataset that is made here: what holds the same tensors."""

    dataset: Any


@dataclasses.dataclass(frozen=True)
class _Form(notes.Inside):
    """Of a dataset that is made here: what it has been made from."""

    deferred: Deferred


def restructured(dataset: Any, spec: Any, origin: Any) -> Any:
    """The tensors of a dataset in another structure.

    Args:
        spec: the specs of the new structure.
        origin: what `_inputs` of the result names.
    """
    result = tf.data.experimental.from_variant(tf.data.experimental.to_variant(dataset), spec)
    result._inputs = lambda: [origin]
    notes.put(result, _Origin(origin))
    return result


def origin_of(dataset: Any) -> Any:
    """What `restructured` has made a dataset from; None of others."""
    found = notes.found(dataset, _Origin)
    return None if found is None else found.dataset


def apply(dataset: Any, stages: Sequence[Stage], first: int = 0) -> Any:
    """Do the maps.

    Args:
        dataset: its elements are tuples of tensors.
        first: how many tensors stand in front of those of the stages.
    """
    for stage in stages:
        dataset = dataset.map(_mapped(stage, first), **_in_parallel(stage.parallel))
    return dataset


def batched(rows: Any, like: Any, size: int, first: tf.TensorSpec | None = None, drop: bool = False) -> Any:
    """Batch flat elements.

    Args:
        rows: a dataset of them.
        like: what `batch` or `padded_batch` has made.
        size: rows of a batch.
        first: of a tensor that stands in front of those of `like`, if one does.
        drop: whether a last batch of fewer rows is left out.
    """
    if calls.kind(like) == "padded_batch":
        shapes, values = tf.nest.flatten(like._padded_shapes), tf.nest.flatten(like._padding_values)
        if first is not None:
            shapes = [tf.constant(first.shape.as_list(), tf.int64), *shapes]
            values = [tf.constant(0, first.dtype), *values]
        return rows.padded_batch(size, tuple(shapes), tuple(values), drop_remainder=drop)
    return rows.batch(size, drop_remainder=drop, **_in_parallel(_parallel(like)))


def _parallel(dataset: Any) -> int | None:
    return int(dataset._num_parallel_calls) if hasattr(dataset, "_num_parallel_calls") else None


def _in_parallel(parallel: int | None) -> dict[str, Any]:
    return {} if parallel is None else {"num_parallel_calls": parallel, "deterministic": True}


def _mapped(stage: Stage, first: int) -> Callable[..., Any]:
    begin = first + stage.first

    @tf.autograph.experimental.do_not_convert
    def call(*element: Any) -> Any:
        results = stage.function(*element[begin : begin + stage.takes])
        return (*element[:begin], *results, *element[begin + stage.takes :])

    return call


def joined(form: Deferred, like: Any) -> Any:
    """The pipeline of two parts as one.

    Args:
        form: the two parts.
        like: has elements of the same structure, and the options.
    """
    mapped = apply(form.source, form.stages)
    result = restructured(mapped, like.element_spec, mapped).with_options(like.options())
    notes.put(result, _Form(form))
    return result


def form_of(dataset: Any) -> Deferred | None:
    """What `joined` has made a dataset from; None of others."""
    found = notes.found(dataset, _Form)
    return None if found is None else found.deferred


def _split(dataset: Any) -> Deferred:
    form = form_of(dataset)
    if form is not None:
        return form
    kind = calls.kind(dataset)
    if kind == "map":
        return _of_map(dataset)
    if hasattr(dataset, "_mapped_dataset"):  # of `ragged_batch`
        return _split(unwrapped(dataset._mapped_dataset))
    if kind == "zip":
        return _of_zip(dataset)
    if isinstance(dataset, tf.data.experimental.CsvDataset):
        lines, why = csv_lines.lines_of(dataset)
        return Deferred(flat(dataset), (), why) if lines is None else _of_map(lines)
    if kind in (*WHOLE_ELEMENTS, "prefetch", "with_options"):
        before = _split(unwrapped(dataset._input_dataset))
        if not before.stages:
            return Deferred(flat(dataset), (), before.kept)
        return before._replace(source=again(before.source, dataset)) if kind in WHOLE_ELEMENTS else before
    return Deferred(flat(dataset), (), _kept(dataset))


def _kept(dataset: Any) -> Why:
    """Why the last map up to a dataset that cannot be deferred is not; files are not looked into for it."""
    form = form_of(dataset)
    if form is not None:
        return form.kept
    if from_generator.of(dataset) is not None:
        return NOTHING
    kept = NOTHING if (parsing := notes.found(dataset, csv_lines.Kept)) is None else parsing.why
    if not kept and calls.kind(dataset) == "map" and (effects := purity.effects(dataset._map_func.function)):
        kept = Reason.EFFECTS(effects=effects)
    return kept or next((why for one in inputs_of(dataset) if (why := _kept(one))), NOTHING)


#: Methods that choose elements by their places alone.
WHOLE_ELEMENTS = ("take", "skip", "repeat", "shard")


def again(source: Any, dataset: Any) -> Any:
    """Do with a pipeline what has made a dataset.

    TensorFlow makes a `shuffle` and the `repeat` behind it one, which draws other orders. What stood between the two is
    done later, so they are kept apart.

    Args:
        source: the pipeline. dataset: made by one call of tf.data, of another one.
    """
    made = calls.of(dataset)
    return made.again(source.with_options(tf.data.Options()) if made.name == "repeat" else source)


def _of_map(dataset: Any) -> Deferred:
    before = _split(unwrapped(dataset._input_dataset))
    effects = purity.effects(dataset._map_func.function)
    if effects:
        drawn = _drawn_first(before, dataset)
        return Deferred(flat(dataset), (), Reason.EFFECTS(effects=effects)) if drawn is None else drawn
    return before._replace(stages=(*before.stages, stage_of(dataset)))


def _drawn_first(before: Deferred, dataset: Any) -> Deferred | None:
    """A map that draws, if its numbers can be drawn in front of all maps."""
    try:
        split = drawn_first.split(dataset._map_func.function)
    except (KeyError, TypeError, ValueError):  # a graph that is unlike what is known
        split = None
    if split is None:
        return None

    @tf.autograph.experimental.do_not_convert
    def drawn(*element: Any) -> Any:
        return (*element, *split.draw())

    stage = stage_of(dataset)
    stage = stage._replace(function=split.compute, takes=stage.takes + len(split.drawn), of_vectors=None)
    return before._replace(source=before.source.map(drawn), stages=(*before.stages, stage))


def stage_of(dataset: Any) -> Stage:
    """What a map does."""
    takes = len(structure.get_flat_tensor_specs(dataset._input_dataset.element_spec))
    of_vectors = None if (found := notes.found(dataset, csv_lines.OfVectors)) is None else found.function
    return Stage(dataset._map_func.function, 0, takes, _parallel(dataset), of_vectors)


def _of_zip(dataset: Any) -> Deferred:
    parts = [_split(one) for one in inputs_of(dataset)]
    kept = next((part.kept for part in parts if part.kept), NOTHING)
    if not any(part.stages for part in parts):
        return Deferred(flat(dataset), (), kept)
    zipped = tf.data.Dataset.zip(tuple(part.source for part in parts))
    specs = tuple(spec for part in parts for spec in part.source.element_spec)
    stages: list[Stage] = []
    before = 0
    for part, one in zip(parts, inputs_of(dataset), strict=True):
        stages += [stage._replace(first=stage.first + before) for stage in part.stages]
        before += len(structure.get_flat_tensor_specs(one.element_spec))
    return Deferred(restructured(zipped, specs, zipped), tuple(stages), kept)
