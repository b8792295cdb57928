"""What has to be kept of a training so that it can go on where it was, in another job; see `resume_fit`.

The values of variables are held, not copied: TensorFlow copies a value that someone holds when it is about to change
it. All else is plain values (see `plain_encoder`), and so is what of callbacks is kept, see `callback_state`.

Relies on (TensorFlow 2.16 to 2.21): see `step_retry`; `context.context()._rng`, private, done without where it is gone;
(Keras 3.3 to 3.15): `CallbackList.callbacks` and `keras.src.random.seed_generator.global_seed_generator`.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.core.mismatch import checksum
from matex_tf.patches.common import keras_lines, model_state, seeds
from matex_tf.patches.keras import metrics, weights
from matex_tf.patches.recovery import callback_state, step_retry
from matex_tf.patches.shards import variable as in_parts
from matex_tf.storage import plain_encoder


def take(model: Any, callbacks: list[Any], python_draws: bool) -> dict[str, Any] | None:
    """Everything that the training of a model has changed. Every rank must call, between two steps.

    Args:
        callbacks: those of the `fit` that is under way.
        python_draws: whether Python's and NumPy's random numbers are kept; not where the data draw them.

    Returns:
        On rank 0 what `give_back` takes, with values that are still TensorFlow's (see `settled`); None elsewhere.
    """
    ranks, remembered = world.current(), model_state.of(model)
    weights.join_accumulators(model)
    merged = remembered.before_merge is not None
    total = None if merged else _metrics_of_all(model)
    held = [(variable, _value(variable)) for variable in step_retry.changing(model)]
    differing = _differing(model, held, merged)
    own = plain_encoder.dumps((remembered.rows, _draws(python_draws)))
    owned = _of_each(own)
    if ranks.rank:
        return None
    return {
        "ranks": ranks.size,
        "variables": [_described(variable) for variable, _ in held],
        "values": [value for _, value in held],
        "metrics": total,
        "differing": differing,
        "own": owned,
        "unmerged": remembered.unmerged,
        "stop_training": bool(getattr(model, "stop_training", False)),
        "callbacks": callback_state.take(callbacks),
        "rates": [keras_lines.rates(optimizer) for optimizer in keras_lines.optimizers_of(model)],
    }


def _value(variable: Any) -> Any:
    """What is kept of a variable. One in parts is gathered by itself, and rank 0 alone keeps it."""
    part = in_parts.of(variable)
    if part is None or not part.is_split:
        return step_retry.held(variable)
    whole = part.take_part(whole=False)
    return None if world.current().rank else whole


def _metrics_of_all(model: Any) -> np.ndarray:
    """The state of the metrics over all ranks, flat; see `step_retry.sum_of_metrics`."""
    if model_state.of(model).whole:  # every rank has it
        return metrics.flatten(step_retry.own_metrics(model))
    return step_retry.sum_of_metrics(model)


def settled(taken: dict[str, Any]) -> dict[str, Any]:
    """A snapshot with NumPy's arrays in place of TensorFlow's tensors, to be written."""
    return {**taken, "values": [np.asarray(value) for value in taken["values"]]}


def _described(variable: Any) -> tuple[str, str, tuple[int, ...]]:
    return variable.name, str(variable.dtype), tuple(variable.shape)


def _differing(model: Any, held: list[tuple[Any, Any]], merged: bool) -> dict[int, list[np.ndarray]]:
    """By their place, the variables of which ranks have values of their own, with those of all ranks."""
    ranks = world.current()
    summed = set() if merged else {id(variable) for variable, _ in step_retry.own_metrics(model)}
    may_differ = {id(variable) for variable in keras_lines.variables(model, "non_trainable_variables")}
    may_differ.update(id(variable) for metric in metrics.leaves(model) for variable in keras_lines.states(metric))
    alike = {id(one) for one, _ in held if (part := in_parts.of(one)) is not None and part.is_split}
    places = [i for i, (variable, _) in enumerate(held) if id(variable) in may_differ - summed - alike]
    marks = np.array([checksum(np.asarray(held[i][1])) for i in places], np.int64)
    everyone = np.array(ranks.allgather(marks, "compare what ranks have of their own"))
    apart = [place for place, differs in zip(places, (everyone != everyone[0]).any(axis=0), strict=True) if differs]
    if not apart:
        return {}
    values = ranks.allgather([np.array(held[place][1]) for place in apart], "gather what ranks have of their own")
    return {place: [values[rank][i] for rank in range(ranks.size)] for i, place in enumerate(apart)}


def _of_each(own: bytes) -> list[bytes | None]:
    """What each rank has of its own; None where that is what rank 0 has."""
    ranks = world.current()
    marks = ranks.allgather(checksum(own), "compare what ranks have of their own")
    same = marks[ranks.rank] == marks[0] and ranks.rank > 0
    return ranks.allgather(None if same else own, "gather what ranks have of their own")


def _draws(python_draws: bool) -> dict[str, Any]:
    """The state of random number generators that belong to no layer."""
    from tensorflow.python.eager import context

    made, of_keras_2 = seeds.keras_generator(make=False), seeds.keras_2_generator()
    eager = getattr(context.context(), "_rng", None)
    return {
        "python": random.getstate() if python_draws else None,
        "numpy": np.random.get_state() if python_draws else None,
        "keras": None if made is None else np.array(made.state.numpy()),
        "keras 2": None if of_keras_2 is None else of_keras_2.getstate(),
        "tensorflow": eager.getstate() if isinstance(eager, random.Random) else None,
        "generators": [np.array(state.numpy()) for state in seeds.generator_states()],
    }


def _set_draws(draws: dict[str, Any]) -> None:
    from tensorflow.python.eager import context

    if draws["python"] is not None:
        random.setstate(draws["python"])
        np.random.set_state(draws["numpy"])
    if draws["keras"] is not None:
        seeds.keras_generator(make=True).state.assign(draws["keras"])
    of_keras_2 = seeds.keras_2_generator()
    if of_keras_2 is not None and draws.get("keras 2") is not None:
        of_keras_2.setstate(draws["keras 2"])
    for state, value in zip(seeds.generator_states(), draws.get("generators", ()), strict=False):
        state.assign(value)
    eager = getattr(context.context(), "_rng", None)
    if draws["tensorflow"] is not None and isinstance(eager, random.Random):
        eager.setstate(draws["tensorflow"])


def make_generator(kept: dict[str, Any]) -> None:
    """Make Keras' generator where the training had one that the script does not make by itself."""
    _, draws = plain_encoder.loads(kept["own"][0])
    if draws["keras"] is not None:
        seeds.keras_generator(make=True)


def fits(model: Any, kept: dict[str, Any]) -> str:
    """In what a `model` differs from the one that was `kept` in a checkpoint, in words; empty where it is the same."""
    variables = list(map(_described, step_retry.changing(model)))
    if variables == kept["variables"]:
        return ""
    for mine, theirs in zip(variables, kept["variables"], strict=False):
        if mine != theirs:
            return f"it has {_in_words(mine)} where the checkpoint has {_in_words(theirs)}"
    return f"it has {len(variables)} variables, and the checkpoint {len(kept['variables'])}"


def _in_words(variable: tuple[str, str, tuple[int, ...]]) -> str:
    name, dtype, shape = variable
    return f"{name} {dtype} {shape}"


def give_back(model: Any, callbacks: list[Any], kept: dict[str, Any], first: bool | None = None) -> None:
    """Let a model, its metrics and the callbacks be what they were. Every rank must call.

    Args:
        callbacks: in the order that they had.
        kept: what `take` gave; without `values` on other ranks than 0.
        first: whether what all ranks had gathered is this one's; None for rank 0.
    """
    ranks, remembered = world.current(), model_state.of(model)
    variables = step_retry.changing(model)
    for place, variable in enumerate(variables):
        dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
        mine = kept["values"][place] if ranks.rank == 0 else np.empty(variable.shape, dtype)
        variable.assign(ranks.broadcast_array(np.asarray(mine)))
    remembered.before_merge = None
    _give_metrics(model, kept, ranks.rank == 0 if first is None else first)
    for place, values in kept["differing"].items():
        _give_own(variables[place], values)
    own = kept["own"][ranks.rank] if ranks.size == kept["ranks"] else None
    rows, draws = plain_encoder.loads(own or kept["own"][0])
    remembered.rows = rows
    remembered.unmerged = kept["unmerged"]
    remembered.accumulators_whole = True
    model.stop_training = kept["stop_training"]
    for optimizer, rates in zip(keras_lines.optimizers_of(model), kept.get("rates", ()), strict=False):
        keras_lines.set_rates(optimizer, rates)
    _set_draws(draws)
    callback_state.give_back(callbacks, kept["callbacks"])


def _give_metrics(model: Any, kept: dict[str, Any], first: bool) -> None:
    """What all ranks had gathered is the first one's from now on, or every rank's where steps leave it whole."""
    remembered = model_state.of(model)
    own, whole = step_retry.own_metrics(model), bool(remembered.whole)
    if kept["metrics"] is not None:
        metrics.assign(own, kept["metrics"] if first or whole else np.zeros_like(kept["metrics"]))
    elif not whole:  # merged, and every rank has the whole
        remembered.before_merge = [(v, value if first else np.zeros_like(value)) for v, value in own]


def _give_own(variable: Any, values: list[np.ndarray]) -> None:
    """A rank's own value; where there are other ranks than there were, one that is made of theirs."""
    ranks = world.current()
    if len(values) == ranks.size:
        variable.assign(values[ranks.rank])
    elif np.issubdtype(values[0].dtype, np.floating):
        variable.assign(np.mean(values, axis=0, dtype=np.float64).astype(values[0].dtype))
    else:
        variable.assign(values[0])
