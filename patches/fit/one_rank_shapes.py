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
import weakref
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.patches.common import wrapping
from matex_tf.patches.data.array_sharding import LocalBatch

#: For each array or tensor of a batch, the rows with which one rank would trace; None where any number.
Rows = Sequence[int | None]

_AS_IT_WAS = ("Cast", "Identity")  # what Keras does to an input before the layer gets it

_of_arrays: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_tracing: dict[int, tuple[Any, int]] = {}  # by id: tensors that a step takes from its batch, and their rows on one rank


def install(module: ModuleType) -> None:
    """Patch keras.src.layers.layer."""
    wrapping.method(module, "Layer._maybe_build", _maybe_build)


def note(epoch_iterator: Any) -> None:
    """Remember how many rows each batch has of the arrays that an epoch iterator of Keras walks over, if all do."""
    adapter = epoch_iterator.data_adapter
    if adapter._partial_batch_size == 0:
        _of_arrays[epoch_iterator._distributed_dataset] = adapter._batch_size


def of_iterator(iterator: tf.data.Iterator) -> Rows:
    """The rows that one rank's iterator over the same data would promise."""
    spec = iterator.element_spec
    if isinstance(spec, LocalBatch):
        rows = _of_arrays.get(getattr(iterator, "_dataset", iterator))
        return [rows] * len(tf.nest.flatten(spec.data))
    shapes = [getattr(leaf, "shape", None) for leaf in tf.nest.flatten(spec)]
    return [shape[0] if shape is not None and shape.rank else None for shape in shapes]


@contextlib.contextmanager
def tracing(taken: Any, rows: Rows) -> Iterator[None]:
    """Build layers as on one rank while a step is traced.

    Args:
        taken: what the step takes from a batch.
        rows: for each of its arrays.
    """
    before = dict(_tracing)
    for leaf, size in zip(tf.nest.flatten(taken), rows, strict=True):
        if size is not None and isinstance(leaf, tf.Tensor):
            _tracing[id(leaf)] = leaf, size
    try:
        yield
    finally:
        _tracing.clear()
        _tracing.update(before)


def _maybe_build(wrapped: Any, layer: Any, args: Any, kwargs: Any) -> Any:
    if not _tracing or layer.built:
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
    origin = tensor
    while id(origin) not in _tracing and origin.op.type in _AS_IT_WAS:
        origin = origin.op.inputs[0]
    if id(origin) not in _tracing or tensor.shape[0] is not None:
        return tensor
    import keras

    shape = (_tracing[id(origin)][1], *tensor.shape[1:])
    return keras.KerasTensor(shape, keras.backend.standardize_dtype(tensor.dtype))
