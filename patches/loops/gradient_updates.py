"""Gradients and optimizers in the script's own code: averaged over ranks, weighted by rows.

A gradient is averaged where `tape.gradient` gives it, if it is one by a variable and no tape records any more. So what
the script does with it (clip it, look at its norm, subtract it from a variable) is what one rank would do. An optimizer
averages what did not come that way. To average twice changes nothing, since the parts of the ranks add up to one;
gradients that are known to be averaged are not exchanged again. A `train_step` of the script's own, which `fit` calls,
is such code too.

Relies on (TensorFlow 2.16 to 2.21): `tf.GradientTape.gradient`, `tf.function`, public; (Keras 3.3 to 3.15)
`BaseOptimizer.apply`, public.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.core import world
from matex_tf.patches.common import batch_share, sharing_report, under_way, wrapping, xla
from matex_tf.patches.keras import optimizer, sum_loss
from matex_tf.patches.loops import batched, position, replica_sync, step_loss
from matex_tf.patches.loops.compiled import one_rank_trace
from matex_tf.state import run_state


class _InSessions(list[Callable[[Sequence[Any], Sequence[str]], list[Any]]]):
    """Of a run: what averages in the graph of a session; one, if a feature does."""


def average_sessions_by(average: Callable[[Sequence[Any], Sequence[str]], list[Any]]) -> None:
    """Let `average` be what averages tensors, of these labels, in the graph of a session."""
    run_state.part(_InSessions)[:] = [average]


def install(module: ModuleType) -> None:
    """Patch tensorflow, or keras.src.optimizers.base_optimizer."""
    if module.__name__ == "tensorflow":
        wrapping.method(module, "GradientTape.gradient", _gradient, in_steps=True)
        wrapping.wrap(module, "function", _function)
    else:
        wrapping.method(module, "BaseOptimizer.apply", _apply)


def average(gradients: Any, variables: Any = None) -> Any:
    """The average over the ranks, weighted by the rows of each rank in the current batch.

    For what was not computed by `tape.gradient` or will not reach an optimizer, the mean loss of a batch among others.

    Args:
        gradients: float tensors of any shape, or a nested structure of them; None where there is no gradient.
        variables: the variables that they belong to, in the same structure; for messages.

    Returns:
        The same structure, with the same values on every rank.

    Raises:
        RanksDisagree: the ranks have other shapes or dtypes.
        MatexError: a dtype that cannot be averaged.
    """
    flat = tf.nest.flatten(gradients)
    in_session = not tf.compat.v1.executing_eagerly_outside_functions()
    if world.current().is_single or not (in_session or position.active()):
        return gradients
    labels = [f"tensor {number}" for number in range(len(flat))]
    if variables is not None:
        labels = optimizer.paths(tf.nest.flatten(variables))
    if in_session:
        given = [place for place, one in enumerate(flat) if one is not None]
        for average_there in run_state.part(_InSessions):
            averaged = average_there([_dense(flat[place]) for place in given], [labels[place] for place in given])
            for place, value in zip(given, averaged, strict=True):
                flat[place] = value
        return tf.nest.pack_sequence_as(gradients, flat)
    position.touch()
    sharing_report.uncovered("a loop of the script's own")
    sharing_report.shared()
    averaged = optimizer.average_named([None if one is None else _dense(one) for one in flat], labels)
    return tf.nest.pack_sequence_as(gradients, averaged)


def _dense(value: Any) -> Any:
    return value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)


def _gradient(wrapped: Any, tape: Any, args: Any, kwargs: Any) -> Any:
    sources = args[1] if len(args) > 1 else kwargs.get("sources")
    if wrapping.alone():
        one_rank_trace.takes_gradients(any(map(is_variable, tf.nest.flatten(sources))))
        return wrapped(*args, **kwargs)
    if all(map(is_variable, tf.nest.flatten(sources))) and _is_of_step():
        gradients = sum_loss.gradient(wrapped, *args, **kwargs)
    else:
        gradients = wrapped(*args, **kwargs)
    in_step = batch_share.of_step() is not None and _is_of_step() and optimizer.averages_in_steps()
    if not in_step and (not position.active() or batched.caller() is None or step_loss.recording()):
        return gradients
    # Structures of gradients may hold IndexedSlices, which are no containers here.
    flat, by = tf.nest.flatten(gradients), tf.nest.flatten(sources)
    if len(flat) != len(by):
        return gradients
    places = [place for place, source in enumerate(by) if is_variable(source) and flat[place] is not None]
    if not places:
        return gradients
    variables = [by[place] for place in places]
    own = optimizer.shaped([flat[place] for place in places], variables)
    if in_step:
        whole = optimizer.average(own, variables)
    else:
        _take_note()
        replica_sync.begin(variables)
        position.touch()
        position.touch_eagerly()
        target = args[0] if args else kwargs.get("target")
        whole = step_loss.average_too(target, tape, own, optimizer.paths(variables))
    for place, averaged in zip(places, whole, strict=True):
        flat[place] = optimizer.mark(averaged)
    return tf.nest.pack_sequence_as(gradients, flat)


def _is_of_step() -> bool:
    """Whether a gradient that is taken now is one of the script's own step, and not of Keras or inside of another."""
    return batch_share.current() is not None and batched.caller() is not None and not step_loss.recording()


def _take_note() -> None:
    """Note whether the training step that runs or is traced now is shared out."""
    sharing_report.uncovered("a loop of the script's own")
    if position.in_shared_loop():
        sharing_report.shared()
    else:
        sharing_report.trained("strategy" if tf.distribute.has_strategy() else "loop")


def is_variable(source: Any) -> bool:
    """Whether this is a variable of TensorFlow or Keras."""
    return isinstance(source, tf.Variable) or (hasattr(source, "assign") and hasattr(source, "path"))


def _apply(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if not position.active():
        return wrapped(*args, **kwargs)
    grads, variables, *_ = wrapping.taken(args, kwargs, grads=(), trainable_variables=None)
    grads = averaged(instance, grads, variables)
    with under_way.having(exchanged=True):
        return wrapped(grads, variables)


def averaged(instance: Any, gradients: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
    """Gradients that an optimizer gets in a loop of the script's own, averaged where no tape has done so.

    Args:
        instance: the optimizer. gradients: tensors, IndexedSlices or None.
        variables: None for those that it has trained before.
    """
    gradients = list(gradients)
    if variables is not None:
        variables = list(variables)
        _take_note()
        replica_sync.begin(variables, instance)
    position.touch()
    if position.has_whole_gradients():
        return gradients
    position.touch_eagerly()
    if all(gradient is None or optimizer.is_marked(gradient) for gradient in gradients):
        return gradients
    return optimizer.average(gradients, instance._trainable_variables if variables is None else variables)


def _function(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """XLA cannot compile a step whose gradients leave it: of a script's tf.function it compiles what lies between."""
    if not (kwargs.get("jit_compile") and position.active() and batched.caller() is not None):
        return wrapped(*args, **kwargs)
    made = functools.partial(wrapped, **{**kwargs, "jit_compile": None})
    given = args[0] if args else kwargs.get("func")
    if given is None:  # a decorator with options
        return lambda function: made(xla.function(function))
    made.keywords.pop("func", None)
    return made(xla.function(given), *args[1:])
