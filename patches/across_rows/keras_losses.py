"""Losses of Keras that look across the rows of a batch: computed on the rows of all ranks.

- `dice` and `tversky` add up over the whole batch, unless `axis` leaves the rows alone; any other loss may be given an
  `axis` that runs over rows. Every rank computes the loss of the whole batch.
- `circle` compares each row with every other. Every rank computes the losses of all rows and keeps those of its own.
- `hinge` and `squared_hinge` turn labels of 0 and 1 into -1 and 1 where the batch has no others.

Keras 2 has but the hinge losses here: an `axis` of its losses is looked at in own_losses.

Relies on (Keras 3.3 to 3.15): the functions of `keras.src.losses.losses` in `BY_AXIS` and `circle`, public, where that
Keras has them, and `convert_binary_labels_to_hinge`, private; (tf_keras 2.16 to 2.21) `losses._maybe_convert_labels`,
private.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.patches.across_rows import gathered_batch
from matex_tf.patches.common import batch_share, keras_lines, wrapping
from matex_tf.state import notes

BY_AXIS = (
    "dice",
    "tversky",
    "cosine_similarity",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "sparse_categorical_crossentropy",
    "binary_crossentropy",
    "binary_focal_crossentropy",
)


class _Whole(notes.Inside):
    """Of a tensor: that it is that of the whole batch."""


def install(module: ModuleType) -> None:
    """Patch keras.src.losses.losses or tf_keras.src.losses."""
    if keras_lines.is_of_keras_2(module.__name__):
        wrapping.wrap(module, "_maybe_convert_labels", _hinge_labels)
        return
    for name in BY_AXIS:
        if hasattr(module, name):  # Keras has got some of them with time
            signature = inspect.signature(getattr(module, name))
            wrapping.wrap(module, name, _by_axis(signature))
    if hasattr(module, "circle"):
        wrapping.wrap(module, "circle", _circle)
    wrapping.wrap(module, "convert_binary_labels_to_hinge", _hinge_labels)


def of_keras(thing: Any) -> bool:
    """Whether a function, or the class of an object, is Keras' own."""
    code = thing if inspect.isroutine(thing) else type(thing)
    return keras_lines.of_keras(code)


def mark(value: Any) -> None:
    """Note that a tensor is that of the whole batch, see `is_of_whole_batch`."""
    notes.put(value, _Whole())


def is_of_whole_batch(value: Any) -> bool:
    """Whether a loss is that of the whole batch, the same on every rank, and not one for each row."""
    return notes.has(value, _Whole)


def _by_axis(signature: inspect.Signature) -> Any:
    def loss(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        part = batch_share.current()
        if part is None or part.apart:
            return wrapped(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        y_pred = tf.convert_to_tensor(given["y_pred"])
        if not across_rows(given["axis"], y_pred.shape.rank):
            return wrapped(*args, **kwargs)
        name = getattr(wrapped, "__name__", "a loss")
        given["y_pred"], _ = gathered_batch.gather(y_pred, part, f"y_pred of {name}")
        given["y_true"], _ = gathered_batch.gather(given["y_true"], part, f"y_true of {name}")
        result = wrapped(*bound.args, **bound.kwargs)
        mark(result)
        return result

    return loss


def across_rows(axis: Any, rank: int | None) -> bool:
    """Whether an `axis` argument (a number, several, or None for all) runs over the first axis of a tensor of so many
    axes, its `rank`; None: not known."""
    if axis is None:
        return True
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    return any(one == 0 or (rank is not None and one == -rank) for one in axes)


def _circle(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    part = batch_share.current()
    given = inspect.signature(wrapped).bind(*args, **kwargs)
    if part is None or part.apart or given.arguments.get("ref_embeddings") is not None:
        return wrapped(*args, **kwargs)
    y_pred, place = gathered_batch.gather(given.arguments["y_pred"], part, "y_pred of circle")
    y_true, _ = gathered_batch.gather(given.arguments["y_true"], part, "y_true of circle")
    given.arguments.update(y_pred=y_pred, y_true=y_true)
    own = gathered_batch.take_own(wrapped(*given.args, **given.kwargs), place)
    keras_lines.set_mask(own, own > 0)
    return own


def _hinge_labels(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    part = batch_share.current()
    if part is None or part.apart:
        return wrapped(*args, **kwargs)
    y_true = args[0] if args else kwargs["y_true"]
    own = tf.reduce_sum(tf.cast((y_true != 0) & (y_true != 1), tf.float32))
    others = gathered_batch.average(own, part, "labels of a hinge loss that are not binary")
    return tf.where(others > 0, y_true, 2 * y_true - 1)
