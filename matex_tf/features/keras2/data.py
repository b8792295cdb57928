"""The data of `fit`, `evaluate` and `predict` of Keras 2.

Of arrays each rank gathers its own rows of each batch. Of other data every rank makes the batches, and takes its rows.

Relies on (tf_keras 2.16 to 2.21), private: `DataHandler.__init__`, with `model`, `distribute`, `epochs` and
`initial_epoch`; `DataHandler._configure_dataset_and_inferred_steps`, `enumerate_epochs`, `_dataset`, `_adapter` and
`_inferred_steps`; `TensorLikeDataAdapter.slice_inputs(indices_dataset, inputs)`, its `_size`, `_batch_size`,
`_partial_batch_size` and `_shuffle`; `_make_class_weight_map_fn`.
"""

from __future__ import annotations

import inspect
import types
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.features.keras2 import sequences
from matex_tf.patches.common import log_once, model_state, under_way, wrapping
from matex_tf.patches.data import array_sharding, batches, local_batch
from matex_tf.patches.data.local_batch import LocalBatch
from matex_tf.patches.recovery import resume_fit
from matex_tf.patches.sources import decide, shuffle_orders, source_sharding
from matex_tf.patches.sources.decide import Source
from matex_tf.patches.sources.reasons import Reason
from matex_tf.state import notes

#: Adapters of data that no Python code makes.
_PLAIN = ("TensorLikeDataAdapter", "CompositeTensorDataAdapter", "DatasetAdapter")


class _OfRanks:
    """Of a data handler: that all ranks walk over its data."""


def install(module: ModuleType) -> None:
    """Patch tf_keras.src.engine.data_adapter."""
    signature = inspect.signature(wrapping.require(module, "DataHandler.__init__"))

    def handler(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        bound = signature.bind(instance, *args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        if given["model"] is None or not given["distribute"]:  # of `adapt`
            return wrapped(*args, **kwargs)
        fitted, predicting = under_way.pending("fit"), under_way.pending("predict")
        purpose = "fit" if fitted is not None else "evaluate" if predicting is None else "predict"
        source_sharding.check_batched(given["x"])
        asked = under_way.EpochsAsked(fitted is not None, given, purpose)
        with under_way.having(epochs_asked=asked), source_sharding.paused():
            result = wrapped(*args, **kwargs)
        notes.put(instance, _OfRanks())
        if type(instance._adapter).__name__ == "KerasSequenceAdapter":
            sequences.takes(given["x"], instance._inferred_steps)
        if fitted is not None and (this := resume_fit.under_way(fitted)) is not None:
            known = type(instance._adapter).__name__ in _PLAIN and instance._inferred_steps is not None
            this.is_of(counted=known, begin_anew=False)  # one iterator walks over all epochs
        return result

    wrapping.wrap(module, "DataHandler.__init__", handler)
    wrapping.wrap(module, "DataHandler._configure_dataset_and_inferred_steps", _configure)
    wrapping.wrap(module, "DataHandler.enumerate_epochs", _walk)
    wrapping.wrap(module, "TensorLikeDataAdapter.slice_inputs", _slice)
    wrapping.wrap(module, "_make_class_weight_map_fn", _class_weights)


def _walk(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    """The epochs of a call, or those of a validation, for which a handler is kept."""
    if notes.has(handler, _OfRanks):
        shuffle_orders.agree(handler._dataset)
    return wrapped(*args, **kwargs)


def _slice(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    """The batches of arrays, from those of indices."""
    asked = under_way.now().epochs_asked
    indices, inputs, *_ = wrapping.taken(args, kwargs, indices_dataset=None, inputs=None)
    leaves = [leaf for leaf in tf.nest.flatten(inputs) if leaf is not None]
    # What only looks like an array is read a batch at a time; batches that are shuffled are so once they are gathered.
    plain = all(map(tf.is_tensor, leaves)) and type(adapter).__name__ == "TensorLikeDataAdapter"
    if asked is None or not plain or adapter._shuffle == "batch":
        return wrapped(*args, **kwargs)
    arrays = types.SimpleNamespace(
        _inputs=inputs,
        _num_samples=int(leaves[0].shape[0]),
        _batch_size=adapter._batch_size,
        _partial_batch_size=adapter._partial_batch_size,
        _size=adapter._size,
        _shuffle=adapter._shuffle,
    )
    elements, size = tf.nest.map_structure(local_batch.at_least_one_row, inputs), adapter._batch_size

    def batches_of_rows() -> Any:
        return _in_batches(indices, arrays, size).map(lambda batch: (batch,))

    epochs = asked.arguments["epochs"] - asked.arguments["initial_epoch"]
    pipeline = array_sharding.pipeline(arrays, batches_of_rows, asked.purpose, asked.arguments, elements, epochs=epochs)
    adapter._size, adapter._batch_size = arrays._size, arrays._batch_size
    adapter._partial_batch_size = arrays._partial_batch_size
    notes.keep(adapter, arrays)
    return pipeline


def _in_batches(indices: Any, arrays: Any, size: int) -> Any:
    """The indices in batches of as many rows as are wanted now. Args: size: of the batches of the script."""
    if arrays._batch_size == size:
        return indices
    epochs, wanted = indices.rebatch(arrays._num_samples), arrays._batch_size
    return epochs.flat_map(lambda epoch: tf.data.Dataset.from_tensors(epoch).rebatch(wanted))


def _class_weights(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Class weights for rows of the rank's own as well."""
    weigh = wrapped(*args, **kwargs)

    def of_rows(*data: Any) -> Any:
        if isinstance(data[0], LocalBatch):
            return data[0]._replace(data=weigh(*data[0].data))
        return weigh(*data)

    return tf.autograph.experimental.do_not_convert(of_rows)


def _configure(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    asked = under_way.now().epochs_asked
    if asked is None or isinstance(handler._dataset.element_spec, LocalBatch):
        return result
    dataset, purpose = handler._dataset, asked.purpose
    given = asked.arguments["x"]
    found = decide.whose(dataset, given if isinstance(given, tf.data.Dataset) else None, handler._inferred_steps)
    if found.own:
        handler._dataset = array_sharding.as_own(dataset, found, purpose)
        handler._inferred_steps = found.batches
    else:
        notes.put(dataset, found.made)
        why = decide.asked(Source.WHOLE, asked.training) or Reason.KERAS_2()
        notes.put(dataset, batches.DoneByAll(f"every rank does all of the work on it: {why}"))
        if asked.training:
            log_once.log(f"each rank makes every batch of the data, and keeps its rows (--data exact): {why}")
        if purpose == "predict":
            model_state.of(asked.arguments["model"]).predicts = found.made
    return result
