"""Models that are built by their first step: with the shapes that one rank would build them with.

Keras builds a model without an `Input` when it traces the first step, on the shape of the batch there: 32 rows where
the pipeline knows that every batch has 32. A rank traces with any number of rows, for its own part of a batch. So where
a layer is built on what the step takes from the batch, Keras gets a symbolic tensor with one rank's shape in its place:
`summary()` and saved models then show what they show on one rank. Nothing is called that would not be otherwise. Layers
that are built on what has been computed from a batch first, or in a tf.function of the script's own, show None.

Relies on (Keras 3.3 to 3.15, private): `Layer._maybe_build(call_spec)`, which builds on the shapes of `call_spec`'s
`arguments_dict`, `tensor_arguments_dict` and `first_arg`; `argument_names`; `ArrayDataAdapter._batch_size` and
`_partial_batch_size`; (TensorFlow 2.16 to 2.21) `OwnedIterator._dataset`, done without where it is gone.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import tensorflow as tf

from matex_tf.patches.common import keras_lines, row_slicing, under_way, wrapping
from matex_tf.patches.data.local_batch import LocalBatch
from matex_tf.patches.partition.shapes import inference
from matex_tf.state import notes

#: For each array or tensor of a batch, the rows with which one rank would trace; None where any number.
Rows = Sequence[int | None]

_AS_IT_WAS = ("Cast", "Identity")  # what Keras does to an input before the layer gets it


class Promise(NamedTuple):
    """What an iterator promises of its batches.

    Attributes:
        rows: those that one rank's iterator would promise, by leaf.
        given: specs of what this rank's iterator gives, nested.
    """

    rows: Rows
    given: Any

    @property
    def spec(self) -> Any:
        """Specs of the batches of one rank's iterator, nested."""
        given = self.given.data if isinstance(self.given, LocalBatch) else self.given
        leaves = map(row_slicing.any_rows, tf.nest.flatten(given), self.rows)
        return tf.nest.pack_sequence_as(given, list(leaves))


class _Known(NamedTuple):
    """Of a pipeline that yields this rank's part of each batch: how many rows a batch has, by its tensors."""

    rows: Rows


def install(module: ModuleType) -> None:
    """Patch keras.src.layers.layer."""
    wrapping.method(module, "Layer._maybe_build", _maybe_build, in_steps=True)


def note(epoch_iterator: Any) -> None:
    """Remember how many rows each batch has of the arrays that an epoch iterator of Keras walks over, if all do."""
    adapter = epoch_iterator.data_adapter
    if adapter._partial_batch_size == 0:
        dataset = epoch_iterator._distributed_dataset
        spec = dataset.element_spec
        leaves = tf.nest.flatten(spec.data) if isinstance(spec, LocalBatch) else []
        note_rows(dataset, [adapter._batch_size] * len(leaves))


def note_rows(dataset: Any, rows: Rows) -> None:
    """Remember how many rows each batch has of which a pipeline yields this rank's part.

    Args:
        dataset: the pipeline. rows: by leaf, those that one rank's pipeline promises; None: any number.
    """
    notes.put(dataset, _Known(rows))


def of_iterator(iterator: Any) -> Promise:
    """What an iterator promises; see `Promise`."""
    spec = iterator.element_spec
    if isinstance(spec, LocalBatch):
        anything: Rows = [None] * len(tf.nest.flatten(spec.data))
        known = notes.found(getattr(iterator, "_dataset", iterator), _Known)
        return Promise(anything if known is None else known.rows, spec)
    shapes = [getattr(leaf, "shape", None) for leaf in tf.nest.flatten(spec)]
    return Promise([shape[0] if shape is not None and shape.rank else None for shape in shapes], spec)


def inputs_on_one_rank(traced: Any, promise: Promise | None) -> list[Any]:
    """The inputs of the graph of a step; of a copy with the shapes with which one rank traces it, if they are promised.

    Args:
        traced: a concrete function of a batch. promise: of the pipeline of its batches.
    """
    specs = [] if promise is None else [one for one in tf.nest.flatten(promise.spec) if one is not None]
    tensors = len(traced.inputs) - len(traced.captured_inputs) == len(specs)
    if not specs or not tensors or not all(isinstance(one, tf.TensorSpec) for one in specs):
        return list(traced.inputs)
    return inference.of(traced.graph, [one.shape for one in specs], rows=False).inputs


def gets_batches(model: Any) -> bool:
    """Whether a step of `fit` or `evaluate` on one rank gets a batch, and is traced with its shape: from Keras 3.16 on.

    Before, a step gets an iterator, and is traced with what that promises of each batch.
    """
    return keras_lines.version() >= (3, 16) and model.steps_per_execution == 1


def tracing(taken: Any, rows: Rows, first: int | None = None) -> contextlib.AbstractContextManager[None]:
    """Build layers as on one rank while a step is traced.

    Args:
        taken: what the step takes from a batch.
        rows: for each of its arrays.
        first: the rows of the batch with which one rank has traced the step first; None if it was with any number.
    """
    known = dict(under_way.now().rows_on_one_rank)
    for leaf, size in zip(tf.nest.flatten(taken), rows, strict=True):
        if size is not None and isinstance(leaf, tf.Tensor):
            known[id(leaf)] = leaf, size
    return under_way.having(rows_on_one_rank=known, first_rows=first)


def _maybe_build(wrapped: Any, layer: Any, args: Any, kwargs: Any) -> Any:
    if not under_way.now().rows_on_one_rank or layer.built:
        return wrapped(*args, **kwargs)
    return wrapped(_on_one_rank(*args, **kwargs))


def _on_one_rank(call_spec: Any) -> Any:
    from keras.src import tree

    given = call_spec.tensor_arguments_dict
    shown = {name: tree.map_structure(_symbol, value) for name, value in given.items()}
    changed = copy.copy(call_spec)
    changed.tensor_arguments_dict = shown
    changed.arguments_dict = {**call_spec.arguments_dict, **shown}
    changed.first_arg = changed.arguments_dict[call_spec.argument_names[0]]
    return changed


def _symbol(tensor: Any) -> Any:
    """A symbolic tensor of one rank's shape, for what comes straight from the batch; everything else as it is."""
    if not tf.is_symbolic_tensor(tensor) or not isinstance(tensor, tf.Tensor) or hasattr(tensor, "_keras_mask"):
        return tensor
    known, origin = under_way.now().rows_on_one_rank, tensor
    while id(origin) not in known and origin.op.type in _AS_IT_WAS:
        origin = origin.op.inputs[0]
    if id(origin) not in known or tensor.shape[0] is not None:
        return tensor
    import keras

    shape = (known[id(origin)][1], *tensor.shape[1:])
    return keras.KerasTensor(shape, keras.backend.standardize_dtype(tensor.dtype))
