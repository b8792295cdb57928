"""Random numbers: the same on every rank where data are made, different in layers that draw during a step.

Relies on: `tf.random.set_seed` (public), `numpy.random.default_rng` (public), and on the name
`seed_generator_state` that Keras 3.3 to 3.15 gives the state of a `keras.random.SeedGenerator`.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from matex_tf import world

_seed: int | None = None
_STRIDE = 1_000_003  # a prime; the seeds of ranks stay apart for layers whose seeds are near one another


def use(seed: int | None) -> None:
    """Remember the seed of the job, and give it to NumPy generators that the script makes without one."""
    global _seed
    _seed = seed
    if seed is not None:
        _seed_default_rng(seed)


def apply(tensorflow: ModuleType) -> None:
    """Seed TensorFlow when it is imported."""
    if _seed is not None:
        tensorflow.random.set_seed(_seed)


def own_seeds() -> None:
    """Give each rank random numbers of its own from now on, for scripts in which ranks shuffle their own data."""
    global _seed
    if _seed is None:
        return
    _seed += world.current().rank * _STRIDE
    random.seed(_seed)
    np.random.seed(_seed % 2**32)
    _seed_default_rng(_seed)
    if "tensorflow" in sys.modules:
        apply(sys.modules["tensorflow"])


def _seed_default_rng(seed: int) -> None:
    original = getattr(np.random.default_rng, "__wrapped__", np.random.default_rng)
    count = itertools.count()

    def default_rng(seed_given: Any = None) -> np.random.Generator:
        if seed_given is None:
            seed_given = np.random.SeedSequence(seed, spawn_key=(next(count),))
        return original(seed_given)

    default_rng.__wrapped__ = original  # type: ignore[attr-defined]
    default_rng.__doc__ = original.__doc__
    np.random.default_rng = default_rng  # type: ignore[assignment]


def is_generator_state(variable: Any) -> bool:
    """Whether a Keras variable is the state of a random number generator."""
    return "seed_generator_state" in variable.name


def part_ways(variables: Iterable[Any]) -> None:
    """Move the generators among `variables`, alike on all ranks until now, to a stream for each rank."""
    offset = world.current().rank * _STRIDE
    if offset:
        for variable in variables:
            if is_generator_state(variable):
                state = np.array(variable.numpy())
                state[0] += offset
                variable.assign(state)


def part_ways_in_graph() -> None:
    """Let random ops without a generator (`tf.random.normal`) draw differently on each rank in this graph."""
    import tensorflow as tf

    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        if graph.seed is not None:
            graph.seed = graph.seed + world.current().rank * _STRIDE
