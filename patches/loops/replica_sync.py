"""Weights in a script's own loop: alike on all ranks before the first step, and a line where they diverge.

Relies on (Keras 3.3 to 3.15): `Layer.trainable_variables`, `Layer.non_trainable_variables`, `Optimizer.variables`, all
public.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.core.mismatch import name_ranks
from matex_tf.patches.common import keras_lines, log_once, seeds
from matex_tf.patches.keras import optimizer, weights
from matex_tf.patches.loops import position
from matex_tf.state import notes, run_state


class _Trained(NamedTuple):
    """Of a variable: that loops have updated it, and how many were there before it."""

    before: int


class _Count:
    """Of a run: how many variables its loops have updated."""

    so_far = 0


class _Optimizer:
    """Of an optimizer: that it has updated such variables."""


class _Layer:
    """Of a layer or a model: that it holds such variables."""


class _OfRank:
    """Of a generator: that it has a stream for each rank."""


def begin(variables: Sequence[Any], using: Any = None) -> None:
    """Before variables are updated for the first time: every rank takes the values that rank 0 has.

    Also where a step is traced, which is before it runs.

    Args:
        variables: of TensorFlow or Keras.
        using: the Keras optimizer that updates them, if there is one yet.

    Raises:
        RanksDisagree: the ranks have other variables.
    """
    new = [variable for variable in variables if not notes.has(variable, _Trained)]
    fresh = using is not None and not notes.has(using, _Optimizer)
    if not new and not fresh:
        return
    with tf.init_scope():
        count = run_state.current().part(_Count)
        for variable in new:
            notes.put(variable, _Trained(count.so_far))
            count.so_far += 1
        if fresh:
            notes.put(using, _Optimizer())
            new = [*new, *keras_lines.optimizer_variables(using)]
        weights.take_from_rank_0(new, optimizer.paths(new), "share the weights of a loop")
        if any(hasattr(variable, "path") for variable in new):
            _find_layers()


def _find_layers() -> None:
    """Layers of Keras that hold trained variables.

    Where each rank has batches of its own that nobody counts (--shard-loops off), the generators in them (of dropout)
    get a stream for each rank.
    """
    kinds = keras_lines.layer_classes()
    for found in gc.get_objects():
        if not issubclass(type(found), kinds) or notes.has(found, _Layer) or not getattr(found, "built", False):
            continue
        if any(notes.has(variable, _Trained) for variable in found.trainable_variables):
            notes.put(found, _Layer())
    if settings.current().shares_loops:
        return
    generators = [
        variable
        for layer in notes.having(_Layer)
        for variable in keras_lines.variables(layer)
        if seeds.is_generator_state(variable)
    ]
    fresh = {id(variable): variable for variable in generators if not notes.has(variable, _OfRank)}
    seeds.diverge_per_rank(fresh.values())
    for variable in fresh.values():
        notes.put(variable, _OfRank())


def merge_statistics() -> None:
    """Average the state that layers keep outside of training (moving means and variances). All ranks come here."""
    ranks = world.current()
    if ranks.is_single:
        return
    for attempt in range(2):
        kept = _statistics()
        labels = [f"{keras_lines.path(variable)} {tuple(variable.shape)}" for variable in kept]
        everyone = ranks.allgather(labels, "compare the layers of a loop")
        if all(other == labels for other in everyone):
            weights.average_statistics(kept)
            return
        if attempt == 0:
            gc.collect()  # layers that nobody uses any more may be gone on one rank and still be there on another


def _statistics() -> list[Any]:
    found = {
        id(variable): variable
        for layer in notes.having(_Layer)
        for variable in keras_lines.variables(layer, "non_trainable_variables")
    }
    kept = [variable for variable in found.values() if not seeds.is_generator_state(variable)]
    return sorted(kept, key=keras_lines.path)


def check() -> None:
    """Say so where the weights that loops have trained differ between ranks. All ranks come here."""
    count = run_state.current().part(_Count).so_far
    if not position.active() or not count:
        return
    alive = notes.having(_Trained)
    since = [count - trained.before for one in alive if (trained := notes.found(one, _Trained)) is not None]
    named = zip(optimizer.paths(alive), map(weights.sums, alive), strict=True)
    mine = dict(zip(since, named, strict=True))
    everyone = world.current().allgather(mine, "compare the weights of a loop")
    # Variables that nobody uses any more may be gone on one rank and still be there on another.
    for place in sorted(set.intersection(*map(set, everyone)), reverse=True):
        entries = [one[place] for one in everyone]
        name, sums = entries[0]
        for rank, (_, other) in enumerate(entries):
            if not np.allclose(other, sums, rtol=1e-4, equal_nan=True):
                log_once.log(
                    f"{name} on {name_ranks([rank])} differs from rank 0: it is updated by something that "
                    "the ranks did not average; matex_tf.average(gradients) does (docs/loops.md)."
                )
                return
