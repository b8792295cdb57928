"""Local SGD with an outer optimizer (DiLoCo, arXiv 2311.08105): ranks train alone for H steps, and then meet once.

All ranks begin a round at the same weights, the anchor a. Each makes H steps with the gradients of its own rows, and
ends at w_r. Then all of them apply the same outer step to the anchor, with the mean of what the ranks have moved as its
gradient (DiLoCo, Algorithm 1), by Nesterov's momentum:

    d = mean over r of (a - w_r)        m <- mu m + d        a <- a - rate (d + mu m)

and begin the next round at a. With rate 1 and mu 0, the default, a is the mean of the ranks' weights: local SGD (arXiv
1805.09767). DiLoCo's 0.7 and 0.9 move a by up to 0.7 / (1 - 0.9) = 7 times as far as the ranks have moved, which takes
thousands of rounds, and a small inner rate.

H = 1 with rate 1 and mu 0 is sync: gradients are averaged then, which for SGD is the same, and for other optimizers
gives the answer of one rank.

Streaming DiLoCo (arXiv 2501.18512): the weights are in parts that meet in turn, and ranks go on while a part travels.

Slots of optimizers are each rank's own (DiLoCo, 2.1). Statistics of the data are averaged where the weights are looked
at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from matex_tf.errors import SettingError
from matex_tf.features.groups.apart import Apart
from matex_tf.features.groups.options import GroupOptions
from matex_tf.settings import Settings, option
from matex_tf.strategies.base import path_of

if TYPE_CHECKING:
    import numpy as np

    from matex_tf.exchange.async_allreduce import PendingAllreduce
    from matex_tf.exchange.bucket import BucketPlan
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
    local_fragments: int = option(
        1,
        "In how many parts ranks meet about the weights. Parts take turns within --local-every steps, so that less "
        "travels at a time.",
        kind="positive",
    )
    local_overlap: int = option(
        0,
        "How many steps ranks train on while the averages of weights travel. 0 waits for them.",
        kind="count",
    )
    local_mix: float = option(
        0.5,
        "With --local-overlap: the share of the weights that is a rank's own where it takes the outer step; the rest "
        "is what all have.",
        kind="number",
    )
    outer_learning_rate: float = option(
        1.0,
        "What the mean of the ranks' moves is multiplied by when they meet. 1 without momentum averages the weights. "
        "DiLoCo has 0.7 with a momentum of 0.9, for thousands of rounds.",
        kind="number",
    )
    outer_momentum: float = option(
        0.0,
        "Nesterov's momentum of the outer step, below 1. With 0.9 it goes several times as far as ranks "
        "have moved, which a job of few rounds does not get over.",
        kind="number",
    )


class Local(Apart):
    """Each rank applies its own gradients for some steps; then all take one outer step.

    It is sync where it meets in each step, without an outer rate and momentum.
    """

    name = "local"
    text = "each rank trains alone for some steps, then all apply the average of what they have moved"
    price = (
        "between meetings ranks learn from their own rows alone, and may need more steps to the same "
        "accuracy, more so with more ranks"
    )
    line = (0, (3, 1, 1, 1))  # dash, dot
    Options = LocalOptions
    options: LocalOptions
    codecs = ("bf16", "int8", "int4")
    rounded = "what ranks send of how far they have moved is rounded between nodes"

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.apart = bool(settings.of(GroupOptions).groups) and not self.synchronous
        self.averages_gradients = self.synchronous or self.apart  # in a group
        if (self.options.outer_learning_rate, self.options.outer_momentum) != (1, 0):
            self.remedy = "take --outer-learning-rate 1 --outer-momentum 0, a smaller learning rate, or --strategy sync"
        who, every = "groups" if self.apart else "ranks", self.options.local_every
        meet = f"{who} train independently, and average what they have learned every {every} steps"
        self.changes = "" if self.synchronous else meet

    def is_synchronous(self) -> bool:
        chosen = self.options
        return (chosen.local_every, chosen.outer_learning_rate, chosen.outer_momentum) == (1, 1, 0)

    @classmethod
    def check(cls, settings: Settings, ranks: int) -> None:
        super().check(settings, ranks)
        chosen = settings.of(LocalOptions)
        if chosen.outer_momentum >= 1:
            raise SettingError(
                f"--outer-momentum is {chosen.outer_momentum:g}; it must be below 1, or what ranks have moved is never "
                "forgotten."
            )
        if not chosen.outer_learning_rate:
            raise SettingError("--outer-learning-rate is 0; it must be above 0, or ranks stay where they are.")
        if chosen.local_overlap >= chosen.local_every:
            raise SettingError(
                f"--local-overlap is {chosen.local_overlap} and --local-every {chosen.local_every}: what travels must "
                "have come before ranks meet again. Take fewer steps of overlap."
            )
        if chosen.local_mix > 1:
            raise SettingError(f"--local-mix is {chosen.local_mix:g}; it is a share, from 0 to 1.")
        if chosen.local_overlap and settings.faults != "abort":
            raise SettingError(
                f"--local-overlap and --faults {settings.faults} do not go together: averages that travel cannot be "
                "taken back if a rank dies. Take --local-overlap 0, or --faults abort."
            )

    def predict(self, step: PlannedStep) -> StepCost:
        if self.synchronous:
            return step.overlapped()
        every, parts = self.options.local_every, self.options.local_fragments
        exchange = dataclasses.replace(step, nbytes=step.nbytes / parts).exchange()  # of a part
        inside = step.inside()
        outer = step.handled(18)  # read twice (4), how far they have moved (4), momentum and anchor (8), set (2)
        own = inside.seconds + outer / every
        waits = max(0.0, exchange.seconds - self.options.local_overlap * own)
        return step.takes(own + waits * parts / every, exchange * (parts / every), outer / every, inside)

    def rounds(self, model: Any, trainable: Sequence[Any]) -> _Rounds:
        return _Rounds(trainable, self.options)

    def flush(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].meet()


class _Rounds:
    """The rounds of one model: its weights in parts, each with a meeting of its own in the steps of a round."""

    def __init__(self, trainable: Sequence[Any], options: LocalOptions):
        """Args: trainable: of Keras, of floating point."""
        self._options = options
        self._fragments = [_Fragment(dealt, options) for dealt in deal(trainable, options.local_fragments, path_of)]
        self._steps = 0  # since all ranks had the same weights

    def before_step(self) -> None:
        """A round begins at the weights as they are, also where a callback has set them; all ranks have the same."""
        for fragment in self._fragments:
            fragment.begin()

    def after_step(self) -> None:
        """Meet about those parts for which it is time."""
        from matex_tf.core import world

        self._steps += 1
        if world.current().guard is not None:  # where a rank may die, all of them have done the same steps
            world.current().barrier("train alone")
        for place, turn in turns(self._steps, self._options, len(self._fragments)):
            fragment = self._fragments[place]
            if turn == "receive":
                fragment.receive(self._options.local_mix)
            else:
                fragment.send() if turn == "send" else fragment.meet()

    def meet(self) -> None:
        """Take an outer step with all parts, unless there was no step since the last one. Collective."""
        if not self._steps:
            return
        self._steps = 0
        for fragment in self._fragments:
            fragment.receive(self._options.local_mix)
            fragment.meet()


def turns(steps: int, options: LocalOptions, parts: int) -> Iterator[tuple[int, str]]:
    """What all ranks do about which part of the weights, once they have made so many steps since they began alike.

    Args:
        parts: of the weights, each of which takes its turn.

    Yields:
        The number of a part, and "send", "receive" or "meet", which is both at once.
    """
    every, overlap = options.local_every, options.local_overlap
    for place in range(parts):
        ahead = place * every // parts  # so that parts take turns
        if overlap and (steps + ahead - overlap) % every == 0:
            yield place, "receive"
        if (steps + ahead) % every == 0:
            yield place, "send" if overlap else "meet"


class _Fragment:
    """A part of the weights: the anchor, the momentum, and what is under way."""

    def __init__(self, variables: Sequence[Any], options: LocalOptions):
        import numpy as np

        self._variables = variables
        self._options = options
        self._anchor: list[np.ndarray] = []  # empty where it is the weights
        self._momentum = [np.zeros_like(_value(v)) for v in variables] if options.outer_momentum else []
        self._plan: tuple[int, BucketPlan] | None = None  # one for all sums: it has what codecs have left over
        self._under_way: PendingAllreduce | None = None

    def begin(self) -> None:
        """Before a step: where ranks have just met, the weights are the anchor."""
        if not self._anchor:
            self._anchor = [_value(variable) for variable in self._variables]

    def meet(self) -> None:
        """Take an outer step; the weights are the new anchor. Collective."""
        from matex_tf.core import world

        if not self._anchor:
            return
        ranks = world.current()
        if ranks.guard is None:
            moved = self._mean_moves()
        else:  # what is sent to a late rank is the end of a meeting, and not all weights
            moved = ranks.guard.transaction(self._mean_moves, lambda: ranks.barrier("have taken an outer step"))[0]
        for variable, anchor in zip(self._variables, self._outer_step(moved), strict=True):
            variable.assign(anchor)
        self._anchor = []

    def send(self) -> None:
        """Begin to sum how far the ranks have moved, while they go on. Collective."""
        from matex_tf.core import world
        from matex_tf.exchange import async_allreduce

        ranks, moves = world.current(), self._moves()
        if ranks.is_single:
            return
        plan = self._planned(moves)
        self._under_way = async_allreduce.of(ranks, plan).post(ranks, plan, moves)

    def receive(self, mix: float) -> None:
        """Take the outer step with what was sent; of the steps since, the weights keep a share `mix`. Collective.

        Streaming DiLoCo, Algorithm 2: w <- mix w + (1 - mix) a.
        """
        from matex_tf.core import world

        if self._under_way is None:
            return
        sums, self._under_way = self._under_way.get(world.current()), None
        for variable, anchor in zip(self._variables, self._outer_step(sums), strict=True):
            held = _value(variable)
            variable.assign((mix * held + (1 - mix) * anchor).astype(held.dtype))

    def _moves(self) -> list[np.ndarray]:
        """This rank's part of the mean of what the ranks have moved since they met."""
        import numpy as np

        from matex_tf.core import world

        part = np.float32(1 / world.current().size)
        return [
            ((anchor - _value(variable)).astype(anchor.dtype) * part).astype(anchor.dtype)
            for anchor, variable in zip(self._anchor, self._variables, strict=True)
        ]

    def _mean_moves(self) -> list[np.ndarray]:
        """The mean, the same bits on each rank."""
        from matex_tf.core import world
        from matex_tf.exchange import process_group

        ranks, moves = world.current(), self._moves()
        if ranks.is_single:
            return moves
        plan = self._planned(moves)
        return ranks.run_atomically(lambda: process_group.sum_planned(ranks, plan, moves))

    def _planned(self, moves: Sequence[np.ndarray]) -> BucketPlan:
        from matex_tf.core import world
        from matex_tf.exchange.bucket import BucketPlan

        size = world.current().size
        if self._plan is None or self._plan[0] != size:
            labels = [f"how far {path_of(variable)} has moved" for variable in self._variables]
            self._plan = size, BucketPlan.of(WHAT, labels, moves, coded=True, at_once=True)
        return self._plan[1]

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


def deal(variables: Sequence[Any], fragments: int, name: Callable[[Any], str]) -> list[list[Any]]:
    """Variables in parts: layers are dealt out in turn (Streaming DiLoCo, 2.1, the strided pattern).

    Args:
        fragments: how many parts at most; there is none without a layer.
        name: of a variable: that of its layer, a slash, and its own.
    """
    layers: dict[str, list[Any]] = {}
    for variable in variables:
        layers.setdefault(name(variable).rpartition("/")[0], []).append(variable)
    parts: list[list[Any]] = [[] for _ in range(max(1, min(fragments, len(layers))))]
    for place, held in enumerate(layers.values()):
        parts[place % len(parts)].extend(held)
    return parts


def _value(variable: Any) -> np.ndarray:
    import numpy as np

    return np.array(variable.numpy())
