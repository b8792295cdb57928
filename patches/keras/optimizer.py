"""The gradient hook of Keras optimizers.

Relies on (Keras 3.5 to 3.15, all private): `BaseOptimizer._backend_apply_gradients(grads, trainable_variables)`, which
gets gradients that are unscaled and filtered, and calls `BaseOptimizer._clip_gradients(grads)` with what an update
step is about to apply: after accumulation, before clipping. Gradients are weighted in the first and exchanged in the
second, so that accumulated steps exchange once, and clipping sees the averaged gradient.

Also (Keras 3.3 to 3.15) on `BaseOptimizer.apply(grads, trainable_variables)` and `build(variables)`, public: a strategy
that delays updates delays the whole of it. And on `add_variable_from_reference(reference, …)`, public, by which an
optimizer makes what has the shape of a weight.

Keras 3.3 and 3.4 clip first, in `BaseOptimizer.apply`, and accumulate clipped gradients: there `_clip_gradients` does
both, in every step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.exchange import op_inputs, virtual_ranks
from matex_tf.patches.common import batch_share, log_once, under_way, wrapping
from matex_tf.patches.shards import pending, slots
from matex_tf.state import notes
from matex_tf.strategies.base import Update
from matex_tf.strategies.sync import Sync, exchange_parts


def install(module: ModuleType) -> None:
    """Patch keras.src.optimizers.base_optimizer."""
    if _clips_after_accumulation(module):
        wrapping.wrap(module, "BaseOptimizer._backend_apply_gradients", _weigh)
        wrapping.wrap(module, "BaseOptimizer._clip_gradients", _exchange)
    else:
        wrapping.wrap(module, "BaseOptimizer._clip_gradients", _weigh_and_exchange)
    wrapping.method(module, "BaseOptimizer.apply", _apply)
    wrapping.method(module, "BaseOptimizer.add_variable_from_reference", _add_slot, in_steps=True)


def _add_slot(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if settings.current().shard == "none" or len(args) > 2:
        return wrapped(*args, **kwargs)
    reference = args[0] if args else kwargs.get("reference_variable")
    with pending.making(kwargs.get("initializer", "zeros"), getattr(reference, "shape", None)):
        slot = wrapped(*args, **kwargs)
    slots.made(slot)
    return slot


def strategy() -> strategies.Strategy:
    """The strategy for the code that runs or is traced now."""
    chosen = strategies.current()
    if not chosen.only_in_fit or batch_share.in_keras():
        return chosen
    log_once.log(
        f"--strategy {chosen.name} works in fit; in loops of the script's own gradients are averaged as in sync"
    )
    return notes.of(chosen, Sync, lambda: Sync(chosen.settings))


@functools.cache  # a fact of the Keras that is installed, asked for again once its method is wrapped
def _clips_after_accumulation(module: ModuleType) -> bool:
    applying = wrapping.require(module, "BaseOptimizer._backend_apply_gradients")
    return "_clip_gradients" in applying.__code__.co_names


def averages_in_steps() -> bool:
    """Whether gradients may be averaged where a step of the script's own gets them, before it clips or changes them."""
    chosen = strategy()
    same = chosen.averages_gradients and chosen.replicas_identical and not chosen.delays_updates
    return same and not settings.current().reproducible


def accumulates_own_part() -> bool:
    """Whether a rank's gradient accumulators hold its own part, and not what was exchanged already."""
    from keras.src.optimizers import base_optimizer

    return _clips_after_accumulation(base_optimizer) and not strategies.current().delays_updates


def delay(instance: Any, grads: Sequence[Any], variables: Sequence[Any], apply: Callable[[list[Any]], Any]) -> None:
    """Hand gradients to a strategy that delays them.

    Args:
        instance: the optimizer, which gets its variables here: an update that may be skipped cannot make them.
        grads, variables: see `shaped`.
        apply: applies averaged gradients, which are dense.
    """
    _build(instance, variables)

    def apply_exchanged(averaged: list[Any]) -> None:
        with under_way.having(exchanged=True):
            apply(averaged)

    update = Update(instance, paths(variables), apply_exchanged, [*variables, *instance.variables], part_of_batch())
    strategy().delay(update, shaped(weighted(grads), variables))


def _build(instance: Any, variables: Sequence[Any]) -> None:
    """Have an optimizer make its variables, where it has not."""
    if not instance.built:
        import keras

        with keras.name_scope(instance.name, caller=instance):
            instance.build(variables)
        instance.built = True


def apply_once(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """An update that the parts of a batch have in common, see `matex_tf.exchange.virtual_ranks`.

    Raises:
        MatexError: the update is not one of a step that is cut into parts.
    """
    if virtual_ranks.current() is None:
        raise MatexError(
            f"--reproducible is for fit, evaluate and train_on_batch, and {instance.name} updates weights in a loop of "
            "the script's own: the bits would depend on the number of ranks. Leave out --reproducible."
        )
    holder = next(c for c in type(instance).__mro__ if "apply" in vars(c))
    if not holder.__module__.startswith("keras."):
        raise MatexError(
            f"--reproducible: {type(instance).__name__} has an apply of its own, which every part of a batch would "
            "run: take an optimizer of Keras, or leave out --reproducible."
        )
    grads, variables, *_ = wrapping.taken(args, kwargs, grads=(), trainable_variables=None)
    known = list(instance._trainable_variables if variables is None else variables)

    def together(given: list[Any]) -> None:
        averaged = exchange_parts(given, paths(known))
        with under_way.having(exchanged=True):
            wrapped(averaged, known)

    virtual_ranks.meet(f"an update by {instance.name}", shaped(weighted(list(grads)), known), together)
    return instance.iterations


def _apply(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """The whole update of an optimizer, where a strategy delays it; its counter of updates then counts those."""
    if settings.current().reproducible and not under_way.now().exchanged:
        return apply_once(wrapped, instance, args, kwargs)
    if under_way.now().exchanged or not strategy().delays_updates:
        return wrapped(*args, **kwargs)
    grads, variables, *_ = wrapping.taken(args, kwargs, grads=(), trainable_variables=None)
    known = list(instance._trainable_variables if variables is None else variables)
    delay(instance, dense(grads), known, lambda averaged: wrapped(averaged, known))
    return None


def dense(grads: Sequence[Any]) -> list[Any]:
    """Gradients as tensors, sparse ones too."""
    return [None if grad is None else tf.convert_to_tensor(grad) for grad in grads]


def _weigh(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    grads, variables = map(list, wrapping.taken(args, kwargs, grads=(), trainable_variables=())[:2])
    if under_way.now().exchanged:
        return wrapped(grads, variables)
    if not instance.gradient_accumulation_steps and all(grad is None or is_marked(grad) for grad in grads):
        with under_way.having(exchanged=True):
            return wrapped(grads, variables)
    if world.current().guard is not None and instance.gradient_accumulation_steps:
        # A rank that dies must not take along what it has accumulated: ranks accumulate what they have exchanged.
        with under_way.having(exchanged=True):
            return wrapped(average(grads, variables), variables)
    with under_way.having(gradient_names=paths(variables)):
        return wrapped(shaped(weighted(grads), variables), variables)


def _exchange(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    now = under_way.now()
    if now.gradient_names is None or now.exchanged:
        return wrapped(*args, **kwargs)
    return wrapped(_sum(args[0] if args else kwargs["grads"], now.gradient_names))


def _weigh_and_exchange(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    grads = list(args[0] if args else kwargs["grads"])
    if under_way.now().exchanged or all(grad is None or is_marked(grad) for grad in grads):
        return wrapped(grads)
    labels = [f"number {position} of {instance.name}" for position in range(len(grads))]
    return wrapped(_sum(weighted(grads), labels))


def _sum(grads: Sequence[Any], labels: Sequence[str]) -> list[Any]:
    return strategy().exchange(grads, labels)


def paths(variables: Sequence[Any]) -> list[str]:
    """The names of Keras or TensorFlow variables, for messages."""
    return [getattr(variable, "path", None) or variable.name for variable in variables]


def part_of_batch() -> tf.Tensor:
    """float64 scalar, by which this rank's gradients count in what is added up over the ranks."""
    part = batch_share.current()
    if not strategy().averages_gradients:
        return part.alive if part is not None else tf.constant(1, tf.float64)
    return part.weight if part is not None else tf.constant(1 / world.current().size, tf.float64)


def weighted(grads: Sequence[Any]) -> list[Any]:
    """Gradients times this rank's part of the batch; a ghost's become 0, whatever they are.

    For a strategy that does not average gradients a rank that has rows counts whole.
    """
    weight = part_of_batch()

    def scale(values: tf.Tensor) -> tf.Tensor:
        if not values.dtype.is_floating:
            return values  # the exchange says that it cannot be summed, by name
        product = tf.math.multiply_no_nan(values, tf.cast(weight, values.dtype))
        op_inputs.note_product(product, values, weight)
        return product

    result: list[Any] = []
    for grad in grads:
        if isinstance(grad, tf.IndexedSlices):
            values, rows = map(tf.convert_to_tensor, (grad.values, grad.indices))  # a script may give plain Python
            result.append(tf.IndexedSlices(scale(values), rows, grad.dense_shape))
        else:
            result.append(None if grad is None else scale(tf.convert_to_tensor(grad)))
    return result


def shaped(grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Gradients of which the dense ones have the shapes of their variables, which a graph may not know.

    Args:
        grads: tensors, IndexedSlices or None. variables: theirs, in the same order.
    """
    for grad, variable in zip(grads, variables, strict=True):
        if tf.is_tensor(grad) and not isinstance(grad, tf.IndexedSlices):
            grad.set_shape(variable.shape)
    return list(grads)


def average(grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Weigh and exchange gradients at once; Nones stay where they are. All ranks come here.

    Args:
        grads, variables: see `shaped`.
    """
    return average_named(shaped(list(grads), variables), paths(variables))


def average_named(grads: Sequence[Any], labels: Sequence[str]) -> list[Any]:
    """Weigh and exchange gradients whose shapes are known. All ranks come here.

    Args:
        grads: see `shaped`. labels: the names of their variables.
    """
    return _sum(weighted(grads), labels)


class _Exchanged(notes.Inside):
    """Of a gradient: that it has been exchanged."""


def mark(gradient: Any) -> Any:
    """Note on a gradient that it has been exchanged."""
    notes.put(gradient, _Exchanged())
    return gradient


def is_marked(gradient: Any) -> bool:
    """Whether `mark` was called for this very gradient."""
    return notes.has(gradient, _Exchanged)
