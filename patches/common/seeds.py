"""Seeds and states of generators: the same on every rank. Which part of a draw is a rank's: patches/random.

Relies on: `Context._rng` of tensorflow.python.eager.context, private; `tf.random.set_seed`,
`tf.random.Generator.from_non_deterministic_state`,
`tf.config.experimental.enable_op_determinism`, `random.Random.seed`, public;
`numpy.random.bit_generator.randbits` (NumPy 1.26 to 2.4), private, which all generators without a seed draw from; and
the name `seed_generator_state` that Keras 3.3 to 3.15 gives the state of a `keras.random.SeedGenerator`.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import NameMoved
from matex_tf.patches.common import keras_lines, wrapping
from matex_tf.state import run_state

_STRIDE = 1_000_003  # a prime; the seeds of ranks stay apart for layers whose seeds are near one another


class _Seeds:
    """Of a run, as the generators of Python, NumPy and TensorFlow are that these seed.

    Attributes:
        seed: of the job; None: the script's own.
        of_tensorflow: what TensorFlow draws from since the job's seed was given to it.
        next: what gives a generator without a seed one.
        states: of generators that belong to no model, in the order they were made in.
        forks: how often this process has forked, and those before it that it was forked from: ranks fork as often.
    """

    def __init__(self) -> None:
        self.seed: int | None = None
        self.of_tensorflow: Any = None
        self.next: Callable[[], np.random.SeedSequence]
        self.states: list[weakref.ref[Any]] = []
        self.forks = [0]


def use(seed: int | None) -> None:
    """Remember the seed of the job, and give it to generators that the script makes without one."""
    run_state.part(_Seeds).seed = seed
    if seed is not None:
        _seed_generators(seed)


def install(tensorflow: ModuleType) -> None:
    """Seed TensorFlow when it is imported; where that is to be forked, the rank does it later."""
    run = run_state.current()
    if run.prepared is None or run.patched:
        seed_tensorflow(tensorflow)
    wrapping.wrap(tensorflow, "random.Generator.from_non_deterministic_state", _alike)


def seed_tensorflow(tensorflow: ModuleType) -> None:
    """Give TensorFlow the seed of the job; with virtual ranks let its ops give the same bits each time."""
    seeds = run_state.part(_Seeds)
    if seeds.seed is not None:
        tensorflow.random.set_seed(seeds.seed)
        seeds.of_tensorflow = importlib.import_module("tensorflow.python.eager.context").context()._rng
        if settings.current().reproducible:
            tensorflow.config.experimental.enable_op_determinism()


def own_seeds() -> None:
    """Give each rank random numbers of its own from now on, for scripts in which ranks shuffle their own data."""
    seeds = run_state.part(_Seeds)
    if seeds.seed is None:
        return
    seeds.seed += world.current().rank * _STRIDE
    random.seed(seeds.seed)
    np.random.seed(seeds.seed % 2**32)
    _seed_generators(seeds.seed)
    if "tensorflow" in sys.modules:
        seed_tensorflow(sys.modules["tensorflow"])


def of_script() -> bool:
    """Whether the seed of TensorFlow is the script's own: an op that draws by it begins again with each iterator."""
    from tensorflow.python.eager import context

    seeds = run_state.part(_Seeds)
    return seeds.seed is None or context.context()._rng is not seeds.of_tensorflow  # which `set_seed` makes


def of_orders() -> tuple[int, bool]:
    """A number by which rows are put in order, and whether it is the script's: then each epoch has the same order."""
    from tensorflow.python.eager import context

    return ((context.global_seed() or 0) % (1 << 63), True) if of_script() else (number(), False)


def number() -> int:
    """A number below 2**63 that is the same on every rank, and another one each time."""
    return _number(63)


def _unseeded(seed: int) -> Callable[[], np.random.SeedSequence]:
    """What gives generators that are made without a seed one after the other, in the same order on every rank."""
    count, above = itertools.count(), tuple(run_state.part(_Seeds).forks[:-1])
    return lambda: np.random.SeedSequence(seed, spawn_key=(*above, next(count)))


def _count_fork() -> None:
    run_state.part(_Seeds).forks[-1] += 1


def _seed_child() -> None:
    """In a process that was forked: draw what the same child of every rank draws, and no other child."""
    seeds = run_state.part(_Seeds)
    if seeds.seed is not None and world.forked():
        seeds.forks.append(0)
        seeds.next = _unseeded(seeds.seed)
        random.seed()  # Python has done it from the system


os.register_at_fork(before=_count_fork, after_in_child=_seed_child)


def _seed_generators(seed: int) -> None:
    """Give generators of NumPy and Python that are made without a seed one that is the same on every rank.

    Those of the main thread: others come in an order of their own. `tempfile` keeps names that nobody can know.
    """
    run_state.part(_Seeds).next = _unseeded(seed)
    if hasattr(random.Random.seed, "__wrapped__"):
        return
    source = importlib.import_module("numpy.random.bit_generator")
    if not hasattr(source, "randbits"):
        raise NameMoved(f"NumPy {np.__version__} has no numpy.random.bit_generator.randbits, which matex_tf relies on.")
    from_system = source.randbits

    def randbits(bits: int) -> int:
        if threading.current_thread() is not threading.main_thread():
            return int(from_system(bits))
        return _number(bits)

    source.randbits = randbits  # type: ignore[attr-defined]
    original = random.Random.seed

    @functools.wraps(original)
    def reseed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and threading.current_thread() is threading.main_thread() and not _asked_by("tempfile"):
            a = _number(128)
        original(self, a, version)

    random.Random.seed = reseed  # type: ignore[method-assign]
    random.seed = functools.partial(reseed, random.seed.__self__)  # type: ignore[attr-defined]


def _number(bits: int) -> int:
    """The next number for a generator without a seed."""
    words = run_state.part(_Seeds).next().generate_state(-(-bits // 32))
    return int.from_bytes(words.tobytes(), "little") & ((1 << bits) - 1)


def _asked_by(module: str) -> bool:
    """Whether the code that wants a seed is that of a module, through `random`."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "random":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == module


def _alike(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """A generator of TensorFlow that is not deterministic: one for all ranks."""
    if run_state.part(_Seeds).seed is None:
        return wrapped(*args, **kwargs)
    import tensorflow as tf

    return tf.random.Generator.from_seed(number(), *args, **kwargs)


def is_generator_state(variable: Any) -> bool:
    """Whether a Keras variable is the state of a random number generator."""
    return "seed_generator_state" in variable.name


def diverge_per_rank(variables: Iterable[Any]) -> None:
    """Move the generators among `variables`, alike on all ranks until now, to a stream for each rank."""
    offset = world.current().rank * _STRIDE
    if offset:
        for variable in variables:
            if is_generator_state(variable):
                state = np.array(variable.numpy())
                state[0] += offset
                variable.assign(state)


def keras_generator(make: bool) -> Any:
    """The generator of Keras 3's random functions that are given no seed; None where there is none yet."""
    if keras_lines.keras_is_2():  # with Keras 2 alone, which has TensorFlow's
        return None
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    if not make:
        return global_state.get_global_attribute("global_seed_generator")
    return seed_generator.global_seed_generator()


def keras_2_generator() -> random.Random | None:
    """What Keras 2 draws the seeds of layers and initializers from, once `set_random_seed` was called; else None."""
    backend = next(
        (sys.modules[name] for name in keras_lines.names("tf_keras.src.backend") if name in sys.modules), None
    )
    held = getattr(getattr(backend, "_SEED_GENERATOR", None), "generator", None)
    return held if isinstance(held, random.Random) else None


def note_state(state: Any) -> None:
    """Remember a `tf.random.Generator`, or a variable that is the state of one, to put that back and to keep it."""
    run_state.part(_Seeds).states.append(weakref.ref(state))


def states() -> list[Any]:
    """The variables of generators that belong to no model."""
    made = keras_generator(make=False)
    return generator_states() if made is None else [made.state.value, *generator_states()]


def generator_states() -> list[Any]:
    """The variables of the script's `tf.random.Generator`s and of ops that draw, in the order they were made in."""
    held = [one for one in (reference() for reference in run_state.part(_Seeds).states) if one is not None]
    return [getattr(one, "state", one) for one in held]
