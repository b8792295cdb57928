"""Some rows of a pipeline, for ranks to compare, without changing what the pipeline yields later.

A `shuffle` draws another order each time that it is walked over, and a `cache` keeps what it has seen. So the rows are
those of the same pipeline without either.

Relies on (TensorFlow 2.16 to 2.21, private): `_input_dataset`, `_map_func`, `_predicate`, `_impl` and `_batch_size` of
datasets; see `deferred`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.util import structure

from matex_tf.patches.division import deferred, drawn_first, epoch_draws, purity
from matex_tf.patches.sources import calls
from matex_tf.patches.sources.pipeline_ownership import inputs_of, unwrapped
from matex_tf.patches.sources.reasons import Reason, Unfit
from matex_tf.patches.turns import from_generator

_PASSED_OVER = ("shuffle", "cache", "prefetch", "with_options", "repeat")


def pipeline(dataset: Any) -> Any:
    """The rows, in batches.

    Raises:
        Unfit: the pipeline may yield something else once it has been walked over.
    """
    try:
        rows = _like(unwrapped(dataset))
        return deferred.restructured(rows, dataset.element_spec, rows).take(1)
    except (AttributeError, TypeError, ValueError) as error:
        raise Unfit(Reason.UNLIKE(error=f"{type(error).__name__}: {error}")) from error


def _like(dataset: Any) -> Any:
    """A dataset like this one, without what keeps a state; its elements are tuples of tensors."""
    kind = calls.kind(dataset)
    form = deferred.form_of(dataset)
    if form is not None:
        return deferred.apply(_like(form.source), form.stages)
    if epoch_draws.are_numbers(dataset):
        return tf.data.Dataset.from_tensors((tf.constant(0, tf.int64),)).repeat()
    if kind in ("from_tensors", "range") or isinstance(dataset, tf.data.experimental.CsvDataset):
        return deferred.flat(dataset)
    if (generator := from_generator.of(dataset)) and (sample := generator.sample(dataset.element_spec)):
        return deferred.flat(sample)
    if hasattr(dataset, "_impl"):  # what reads files
        return _like(unwrapped(dataset._impl))
    if kind == "zip":
        parts = [_like(one) for one in inputs_of(dataset)]
        zipped = tf.data.Dataset.zip(tuple(parts))
        return deferred.restructured(zipped, tuple(spec for part in parts for spec in part.element_spec), zipped)
    if hasattr(dataset, "_mapped_dataset"):  # of `ragged_batch`
        return _like(unwrapped(dataset._mapped_dataset))
    if (origin := deferred.origin_of(dataset)) is not None:
        return _like(unwrapped(origin))
    if not hasattr(dataset, "_input_dataset"):
        raise Unfit(Reason.MAY_KEEP(kind=calls.words(dataset)))
    before = _like(unwrapped(dataset._input_dataset))
    if kind in _PASSED_OVER:
        return before
    if kind in deferred.WHOLE_ELEMENTS:
        return deferred.again(before, dataset)
    if kind in ("batch", "padded_batch"):
        return deferred.batched(before, dataset, int(dataset._batch_size))
    if kind == "map":
        return before.map(_without_draws(dataset._map_func.function) or _call(dataset._map_func))
    if kind == "filter":
        keep = _call(dataset._predicate)
        return before.filter(tf.autograph.experimental.do_not_convert(lambda *element: keep(*element)[0]))
    if kind == "flat_map":
        specs = tuple(structure.get_flat_tensor_specs(dataset.element_spec))
        inner = _call(dataset._map_func)

        @tf.autograph.experimental.do_not_convert
        def opened(*element: Any) -> Any:
            return tf.data.experimental.from_variant(inner(*element)[0], specs)

        return before.flat_map(opened)
    raise Unfit(Reason.MAY_KEEP(kind=calls.words(dataset)))


def _call(function: Any) -> Callable[..., Any]:
    concrete = function.function
    if effects := purity.effects(concrete):
        raise Unfit(Reason.SAMPLE_EFFECTS(effects=effects))
    return tf.autograph.experimental.do_not_convert(lambda *element: tuple(concrete(*element)))


def _without_draws(function: Any) -> Callable[..., Any] | None:
    """What a map computes with zeros in the place of the numbers that it draws; None if it draws none."""
    split = drawn_first.split(function) if purity.effects(function) else None
    if split is None:
        return None
    nothing = [tf.zeros(spec.shape, spec.dtype) for spec in split.drawn]
    return tf.autograph.experimental.do_not_convert(lambda *element: tuple(split.compute(*element, *nothing)))
