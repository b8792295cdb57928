"""Learning rates by the step, in epochs that have become shorter: as if these had all of their steps.

A schedule such as `CosineDecay(1e-3, decay_steps=100 * steps_of_an_epoch)` counts steps. With rows left out an epoch
has fewer, and such a schedule would not come to its end. So a schedule gets the place that the training would have with
all rows: step k of an epoch of n steps, which would have N, is step k N / n of it. The optimizer's own counter stays
the number of updates.

Relies on (Keras 3.3 to 3.15, private): `BaseOptimizer._get_current_learning_rate`, its `_learning_rate` and
`_iterations`, or `iterations` in older ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.patches.common import wrapping
from matex_tf.state import notes


class _Steps:
    """Of an optimizer: how many steps its schedule is ahead, as int64 scalar."""

    def __init__(self) -> None:
        self.variable = tf.Variable(0, dtype=tf.int64, trainable=False)


class Ahead:
    """By how many steps the schedules of some optimizers are ahead of their counters."""

    def __init__(self, optimizers: Sequence[Any]):
        """Args: optimizers: of Keras; those without a schedule are left alone."""
        from keras.src.optimizers.schedules.learning_rate_schedule import LearningRateSchedule

        scheduled = [
            one for one in optimizers if isinstance(getattr(one, "_learning_rate", None), LearningRateSchedule)
        ]
        self._variables = [notes.of(one, _Steps).variable for one in scheduled]
        self._base = [int(variable.numpy()) for variable in self._variables]
        self._full = self._short = 1
        self._step = 0

    def begin_epoch(self, full: int, short: int) -> None:
        """Args: full: steps that the epoch would have with all rows. short: those that it has."""
        self._full, self._short, self._step = full, short, 0

    def before_step(self) -> None:
        if self._full != self._short:
            self._assign(self._step * (self._full - self._short) // self._short)

    def after_step(self) -> None:
        self._step += 1

    def end_epoch(self) -> None:
        """All steps of the epoch have run, or those until it was stopped."""
        if self._full != self._short:
            self._assign(self._step * (self._full - self._short) // self._short)
        self._base = [int(variable.numpy()) for variable in self._variables]
        self._full = self._short

    def _assign(self, more: int) -> None:
        for variable, base in zip(self._variables, self._base, strict=True):
            variable.assign(base + more)

    def state(self) -> list[Any]:
        """What `restore` takes."""
        return [list(self._base), self._full, self._short, self._step]

    def restore(self, kept: Sequence[Any]) -> None:
        """Go on within an epoch."""
        base, self._full, self._short, self._step = kept
        self._base = list(base)


def install(module: ModuleType) -> None:
    """Patch keras.src.optimizers.base_optimizer."""
    wrapping.method(module, "BaseOptimizer._get_current_learning_rate", _learning_rate)


def _learning_rate(wrapped: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
    ahead = notes.found(optimizer, _Steps)
    if ahead is None:
        return wrapped(*args, **kwargs)
    counter = optimizer._iterations if hasattr(optimizer, "_iterations") else optimizer.iterations
    step = tf.convert_to_tensor(counter)
    return optimizer._learning_rate(step + tf.cast(ahead.variable, step.dtype))
