"""Local SGD with an outer optimizer (DiLoCo, arXiv 2311.08105): ranks train alone for H steps, and then meet once.

All ranks begin a round at the same weights, the anchor a. Each makes H steps with the gradients of its own rows, and
ends at w_r. Then all of them apply the same outer step to the anchor, with the mean of what the ranks have moved as its
gradient (DiLoCo, Algorithm 1), by Nesterov's momentum:

    d = mean over r of (a - w_r)        m <- mu m + d        a <- a - rate (d + mu m)

and begin the next round at a. With rate 1 and mu 0, a is the mean of the ranks' weights: local SGD (arXiv 1805.09767).

H = 1 with rate 1 and mu 0 is sync: gradients are averaged then, which for SGD is the same, and for other optimizers
gives the answer of one rank.

Slots of optimizers are each rank's own (DiLoCo, 2.1). Statistics of the data are averaged where the weights are looked
at.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matex_tf.errors import MatexError, SettingError
from matex_tf.settings import Settings, option
from matex_tf.strategies.base import Gradient, path_of
from matex_tf.strategies.sync import Sync

if TYPE_CHECKING:
    import numpy as np

    from matex_tf.planning.step_cost import PlannedStep, StepCost

WHAT = "take an outer step"


@dataclasses.dataclass(frozen=True)
class LocalOptions:
    """`--local-every` and the rest."""

    local_every: int = option(
        16,
        "How many steps ranks make by themselves between two meetings.",
        kind="positive",
    )
    outer_learning_rate: float = option(
        0.7,
        "What the mean of the ranks' moves is multiplied by when they meet. 1 without momentum averages the weights.",
        kind="number",
    )
    outer_momentum: float = option(
        0.9,
        "Nesterov's momentum of the outer step, below 1.",
        kind="number",
    )


class Local(Sync):
    """Each rank applies its own gradients for some steps; then all take one outer step.

    Attributes:
        plain: whether it is sync: a meeting in each step, without an outer rate and momentum.
    """

    name = "local"
    text = "each rank trains alone for some steps, then all apply the average of what they have moved"
    line = (0, (3, 1, 1, 1))  # dash, dot
    Options = LocalOptions
    options: LocalOptions
    rounded = "what ranks send of how far they have moved is rounded between nodes"

    def __init__(self, settings: Settings):
        super().__init__(settings)
        chosen = self.options
        self.plain = (chosen.local_every, chosen.outer_learning_rate, chosen.outer_momentum) == (1, 1, 0)
        self.averages_gradients = self.replicas_identical = self.plain
        self.only_in_fit = not self.plain
        self.changes = "" if self.plain else "each rank trains alone between meetings"
        self._rounds: weakref.WeakKeyDictionary[Any, _Rounds] = weakref.WeakKeyDictionary()

    @classmethod
    def check(cls, settings: Settings, ranks: int) -> None:
        chosen = settings.of(LocalOptions)
        if chosen.outer_momentum >= 1:
            raise SettingError(
                f"--outer-momentum is {chosen.outer_momentum:g}; it must be below 1, or what ranks have moved is never "
                "forgotten."
            )
        if not chosen.outer_learning_rate:
            raise SettingError("--outer-learning-rate is 0; it must be above 0, or ranks stay where they are.")
        if settings.faults == "restart":
            raise SettingError(
                "--strategy local cannot be started again from a checkpoint: that has the weights of one rank, and "
                "each has its own. Take --faults shrink, --faults abort, or --strategy sync."
            )

    def predict(self, step: PlannedStep) -> StepCost:
        if self.plain:
            return step.overlapped()
        every, exchange = self.options.local_every, step.exchange()
        outer = 3 * step.nbytes * step.machine.gamma  # the difference, the momentum, the anchor
        own = step.compute + step.update + outer / every
        return step.takes(own + exchange.seconds / every, exchange * (1 / every), outer / every)

    @property
    def note(self) -> str:
        if self.plain:
            return ""
        chosen = self.options
        rate, momentum = f"{chosen.outer_learning_rate:g}", f"{chosen.outer_momentum:g}"
        return (
            f"each rank applies the gradients of its own rows; after every {chosen.local_every} steps all ranks take "
            f"one outer step with the average of what they have moved (rate {rate}, momentum {momentum}). They also do "
            "so before validation, evaluate, predict, saving and the end of fit"
        )

    def exchange(self, gradients: Sequence[Gradient], names: Sequence[str]) -> list[Gradient]:
        return super().exchange(gradients, names) if self.plain else list(gradients)

    def begin(self, model: Any, trainable: Sequence[Any], state: Sequence[Any]) -> None:
        if self.plain:
            return
        if not trainable:
            raise MatexError(
                f"{model.name} has no weights before its first step, and ranks could not meet about them: call "
                "model.build(…) with the shape of its inputs before fit."
            )
        self._rounds[model] = _Rounds(trainable, self.options)

    def before_step(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].before_step()

    def after_step(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].after_step()

    def flush(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].meet()


class _Rounds:
    """The rounds of one model: the anchor, the momentum, and how many steps there were since ranks have met."""

    def __init__(self, trainable: Sequence[Any], options: LocalOptions):
        """Args: trainable: of Keras; those of floating point take part."""
        import numpy as np
        import tensorflow as tf

        self._variables = [variable for variable in trainable if tf.as_dtype(variable.dtype).is_floating]
        self._options = options
        self._anchor: list[np.ndarray] = []
        self._momentum = [np.zeros_like(_value(v)) for v in self._variables] if options.outer_momentum else []
        self._steps = 0

    def before_step(self) -> None:
        """A round begins at the weights as they are, also where a callback has set them; all ranks have the same."""
        if not self._steps:
            self._anchor = [_value(variable) for variable in self._variables]

    def after_step(self) -> None:
        """Meet, where it is time for it."""
        from matex_tf.core import world

        self._steps += 1
        if world.current().guard is not None:  # where a rank may die, all of them have done the same steps
            world.current().barrier("train alone")
        if self._steps >= self._options.local_every:
            self.meet()

    def meet(self) -> None:
        """Take an outer step, unless there was no step since the last one. Collective."""
        from matex_tf.core import world

        if not self._steps:
            return
        ranks = world.current()
        if ranks.guard is None:
            moved = self._mean_moves()
        else:  # what is sent to a late rank is the end of a meeting, and not all weights
            moved = ranks.guard.transaction(self._mean_moves, lambda: ranks.barrier("have taken an outer step"))[0]
        self._steps = 0
        for variable, anchor in zip(self._variables, self._outer_step(moved), strict=True):
            variable.assign(anchor)

    def _mean_moves(self) -> list[np.ndarray]:
        """The mean over the ranks of what they have moved since they met, the same bits on each."""
        import numpy as np

        from matex_tf.core import world
        from matex_tf.exchange import process_group
        from matex_tf.exchange.bucket_plan import BucketPlan

        ranks = world.current()
        part = np.float32(1 / ranks.size)
        moved = [
            ((anchor - _value(variable)).astype(anchor.dtype) * part).astype(anchor.dtype)
            for anchor, variable in zip(self._anchor, self._variables, strict=True)
        ]
        if ranks.is_single:
            return moved
        labels = [f"how far {path_of(variable)} has moved" for variable in self._variables]
        plan = BucketPlan.of(WHAT, labels, moved, coded=True, at_once=True)
        return ranks.run_atomically(lambda: process_group.sum_planned(ranks, plan, moved))

    def _outer_step(self, moved: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The next anchor."""
        rate, momentum = self._options.outer_learning_rate, self._options.outer_momentum
        for place, move in enumerate(moved):
            step = move
            if momentum:
                self._momentum[place] = (momentum * self._momentum[place] + move).astype(move.dtype)
                step = move + momentum * self._momentum[place]
            self._anchor[place] = (self._anchor[place] - rate * step).astype(self._anchor[place].dtype)
        return self._anchor


def _value(variable: Any) -> np.ndarray:
    import numpy as np

    return np.array(variable.numpy())
