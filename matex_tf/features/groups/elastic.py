"""Elastic averaging SGD: groups of ranks train apart, and an elastic force holds them to a center (arXiv 1412.6651).

Every tau steps of its own a group at w meets the center c, whenever it comes there, and waits for no other group:

    d = alpha (w - c)        w <- w - d        c <- c + d

(asynchronous EASGD, Algorithm 1; between groups of MPI ranks: ESGD of arXiv 1801.03855). While what a group has sent
travels it trains on, and moves by d once it is there.

With momentum it is EAMSGD (equations 7 and 8, Nesterov's): the optimizer gets g + mu m, where m <- mu m + g. For SGD
these are the paper's steps, seen from where the paper's gradient is taken.

Slots of optimizers are each group's own. The script sees the center.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matex_tf.errors import SettingError
from matex_tf.features.groups.centered import Centered, CenterRounds
from matex_tf.settings import Settings, option
from matex_tf.strategies.base import Gradient

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy as np
    import tensorflow as tf

    from matex_tf.features.groups.center.member import Member
    from matex_tf.planning.step_cost import PlannedStep, StepCost

#: The part of the distance that the center moves while each group meets it once (beta of the paper, section 4.1).
BETA = 0.9


@dataclasses.dataclass(frozen=True)
class ElasticOptions:
    """`--elastic-every` and the rest."""

    elastic_every: int = option(
        16,
        "How many steps a group makes by itself from one meeting with the center to the next.",
        kind="positive",
    )
    elastic_alpha: float = option(
        0.0,
        "Which part of the distance between a group and the center both move when they meet, below 1. 0 stands for 0.9 "
        "divided by the number of groups.",
        kind="number",
    )
    elastic_momentum: float = option(
        0.0,
        "Nesterov's momentum of each group's gradients, below 1 (EAMSGD). It comes before the script's optimizer, "
        "which best has none.",
        kind="number",
    )
    elastic_overlap: bool = option(
        True,
        "Whether a group trains on while it meets the center.",
        kind="switch",
    )


class Elastic(Centered):
    """Groups train apart, and now and then each moves towards a center, and the center towards it."""

    name = "elastic"
    text = "groups train around a center, which each of them meets now and then without waiting for another"
    price = "a group learns only from its own rows, and the center follows later, more so with more groups"
    line = (0, (1, 1))  # dots, dense
    Options = ElasticOptions
    options: ElasticOptions
    rounded = "what groups and the center send of how far they have moved is rounded"
    changes = "groups train independently around a center"
    encodes_in_node = True

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._momentum: weakref.WeakKeyDictionary[Any, dict[str, tf.Variable]] = weakref.WeakKeyDictionary()
        self._model: Any = lambda: None

    @classmethod
    def check(cls, settings: Settings, ranks: int) -> None:
        super().check(settings, ranks)
        chosen = settings.of(ElasticOptions)
        if chosen.elastic_alpha >= 1:
            raise SettingError(
                f"--elastic-alpha is {chosen.elastic_alpha:g}; it must be below 1, or a group and the center pass each "
                "other."
            )
        if chosen.elastic_momentum >= 1:
            raise SettingError(
                f"--elastic-momentum is {chosen.elastic_momentum:g}; it must be below 1, or no gradient is ever "
                "forgotten."
            )

    def predict(self, step: PlannedStep) -> StepCost:
        inside, between, gathered = step.inside(), step.center(), step.gathered()
        part = 1 / self.options.elastic_every
        # Whole: read twice, before and behind the meeting (4), put together, move, set (2). Of a part: cut, send (2),
        # add, receive (2).
        outer = step.handled(8, 6) * part
        own, wire, work = inside.seconds + gathered.seconds * part + outer, between * part, (between + gathered) * part
        seconds = max(own, wire.seconds) if self.options.elastic_overlap else own + wire.seconds
        return step.takes(seconds, work, outer, inside)

    def exchange(self, gradients: Sequence[Gradient], names: Sequence[str]) -> list[Gradient]:
        whole = super().exchange(gradients, names)
        return self._with_momentum(whole, names) if self.options.elastic_momentum else whole

    def begin(self, model: Any, trainable: Sequence[Any], state: Sequence[Any]) -> None:
        super().begin(model, trainable, state)
        self._model = weakref.ref(model)

    def of_member(self, member: Member) -> CenterRounds:
        return ElasticRounds(member, self.options)

    def _with_momentum(self, gradients: Sequence[Gradient], names: Sequence[str]) -> list[Gradient]:
        """Nesterov: m <- mu m + g, and g + mu m for the optimizer."""
        import tensorflow as tf

        mu = self.options.elastic_momentum
        held = self._momentum.setdefault(self._model() or self, {})
        result: list[Gradient] = []
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is None:
                result.append(None)
                continue
            dense = tf.convert_to_tensor(gradient)
            if name not in held:
                with tf.init_scope():  # one for all graphs of the step
                    held[name] = tf.Variable(tf.zeros(dense.shape, dense.dtype), trainable=False)
            moved = held[name].assign(mu * held[name] + dense)
            result.append(dense + mu * moved)
        return result


class ElasticRounds(CenterRounds):
    """Meets the center every so many steps."""

    def __init__(self, member: Member, options: ElasticOptions):
        from matex_tf.features.groups.center.schedule import Meetings

        super().__init__(member)
        self._options = options
        self._under_way: Future[np.ndarray] | None = None
        self._meetings = Meetings(options.elastic_every)

    def after_step(self) -> None:
        super().after_step()
        if self._under_way is not None and self.member.all_have(self._under_way.done()):
            self._move()
        if self._meetings.due(self.steps):
            self._meet()
            if not self._options.elastic_overlap:
                self._move()

    def settle(self) -> None:
        """A last meeting, so that the center has what the group has learned."""
        if self._meetings.left_over(self.steps):
            self._meet()
        self._move()

    def _meet(self) -> None:
        self._move()
        weights = self.member.part(self.member.values())
        alpha = self._options.elastic_alpha or BETA / self.member.count
        self._under_way = self.member.later(self.member.client.elastic, weights, alpha)

    def _move(self) -> None:
        """Move towards the center by what it has answered, if anything is under way."""
        if self._under_way is not None:
            moves, self._under_way = self.member.gather(self.member.answer_of(self._under_way.result)), None
            self.member.assign(self.member.values() - moves)
