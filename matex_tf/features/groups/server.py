"""Asynchronous SGD with parameter servers, and a bound on staleness (Downpour SGD, Dean et al., NIPS 2012).

After each of its steps a group adds to the center by how much its optimizer has moved its weights, in the proportion of
its rows, and takes the center for its weights:

    c <- c + (w' - w) / groups        w <- c

(push and pull). For SGD that is an update of the server with the group's gradient. A group goes on while no other one
is more than k steps behind it (stale synchronous parallel, Ho et al., NIPS 2013). With k = 0 gradients are averaged in
every step, which is sync.

Slots of optimizers are each group's own. The script sees the center.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from matex_tf.features.groups.centered import Centered, CenterRounds
from matex_tf.settings import option

if TYPE_CHECKING:
    import numpy as np

    from matex_tf.features.groups.center.member import Member
    from matex_tf.planning.step_cost import PlannedStep, StepCost


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """`--staleness`."""

    staleness: int = option(
        4,
        "How many steps a group may be ahead of the slowest one. 0 is sync, and gives its answer.",
        kind="count",
    )


class Server(Centered):
    """Groups add what they have learned to a center after each step, and go on with it."""

    name = "server"
    text = "groups add each step to a center on parameter servers, and continue from it, up to some steps ahead"
    price = "gradients of weights that have moved on want a smaller learning rate, or more steps"
    line = ":"
    Options = ServerOptions
    options: ServerOptions
    rounded = "what groups add to the center, and how far it has moved, is rounded"
    encodes_in_node = True

    def is_synchronous(self) -> bool:
        return self.options.staleness == 0

    @property
    def changes(self) -> str:  # type: ignore[override]
        return "" if self.synchronous else "groups apply gradients of older weights"

    def of_member(self, member: Member) -> CenterRounds:
        return ServerRounds(member, self.options.staleness)

    def predict(self, step: PlannedStep) -> StepCost:
        if self.synchronous:
            return step.overlapped()
        inside, meeting = step.inside(), step.center() + step.gathered()
        # Whole: read (2), the difference, put together, set (2). Of a part: cut, send (2), receive (2), add, copy.
        own = step.handled(6, 7)
        return step.takes(inside.seconds + meeting.seconds + own, meeting, own, inside)


class ServerRounds(CenterRounds):
    """Adds each step to the center, and takes it."""

    def __init__(self, member: Member, staleness: int):
        super().__init__(member)
        self._staleness = staleness
        self._counts = False  # whether others wait for the steps of this group
        member.waits_for_nobody(self._over)
        self._base: np.ndarray | None = None  # the weights before the step

    def before_step(self) -> None:
        self.member.hide(own=False)
        if self._base is None:
            self._base = self.member.values()
            self.steps = max(self.steps, self.member.ahead)  # a group that joins begins beside the slowest

    def after_step(self) -> None:
        import numpy as np

        super().after_step()
        member, self._counts = self.member, True
        moved = member.values()
        moved -= self._base
        moved *= np.float32(1 / member.count)
        clock = member.epochs * member.EPOCH + self.steps
        answer = member.answer_of(lambda: member.client.push_and_pull(member.part(moved), clock, self._staleness))
        self._base = member.gather(answer.copy())
        member.assign(self._base)

    def _over(self) -> None:
        """No other group shall wait for this one, which waits for them."""
        if self._counts:
            self._counts = False
            self.member.client.over()

    def settle(self) -> None:
        """Its steps have all been added. What the center is when others have ended the epoch too is the next base."""
        self._base = None
        self.steps = 0
