"""What elastic and server have in common: groups that train apart, each as sync does, around a center.

A strategy has one `Rounds` for each model that trains. What it does after a step stands in the strategy's own file.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matex_tf.errors import MatexError, SettingError
from matex_tf.settings import Settings
from matex_tf.strategies.base import Gradient
from matex_tf.strategies.sync import Sync

if TYPE_CHECKING:
    from matex_tf.center.member import Member


class Rounds:
    """One model in one training: its weights and the center.

    Attributes:
        member: how this rank meets the center.
        steps: that the group has made.
    """

    def __init__(self, member: Member):
        self.member = member
        self.steps = 0

    def before_step(self) -> None:
        """Where the model has the center, let it have the group's weights again."""
        self.member.hide()

    def after_step(self) -> None:
        """The group has made a step."""
        self.steps += 1

    def settle(self) -> None:
        """Let nothing be under way."""


class Centered(Sync):
    """Groups that train apart around a center.

    Attributes:
        synchronous: whether it is sync with these options, with no groups and no center.
    """

    codecs = ("int8",)
    in_groups = True
    has_center = True

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.synchronous = self.is_synchronous()
        self.replicas_identical = self.synchronous
        self.only_in_fit = self.apart = self.deals_parts = not self.synchronous
        self._rounds: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def is_synchronous(self) -> bool:
        """Whether it is sync with these options."""
        return False

    def rounds(self, member: Member) -> Rounds:
        """The rounds of a model that begins to train."""
        raise NotImplementedError

    @classmethod
    def check(cls, settings: Settings, ranks: int) -> None:
        if settings.faults == "restart":
            raise SettingError(
                f"--strategy {cls.name} cannot be started again from a checkpoint: that has the weights of one group, "
                "and each has its own. Take --faults shrink, --faults abort, or --strategy sync."
            )

    def exchange(self, gradients: Sequence[Gradient], names: Sequence[str]) -> list[Gradient]:
        from matex_tf.core import world

        return list(gradients) if world.current().is_single else super().exchange(gradients, names)

    def begin(self, model: Any, trainable: Sequence[Any], state: Sequence[Any]) -> None:
        import tensorflow as tf

        from matex_tf.center.member import Member
        from matex_tf.core import world

        if self.synchronous:
            return
        if not trainable:
            raise MatexError(
                f"{model.name} has no weights before its first step, and there could be no center of them: call "
                "model.build(…) with the shape of its inputs before fit."
            )
        self._close(model)
        guard = world.current().guard
        if guard is not None:
            guard.shares_batches = False  # parts of batches are dealt out to those that are left
        floats = [variable for variable in trainable if tf.as_dtype(variable.dtype).is_floating]
        self._rounds[model] = self.rounds(Member(world.current(), self.settings, floats))
        self._rounds[model].member.begin_epoch()

    def before_step(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].before_step()

    def after_step(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].after_step()

    def flush(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].settle()
            self._rounds[model].member.show()

    def begin_epoch(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].member.begin_epoch()

    def next_part(self, model: Any) -> int:
        part: int = self._rounds[model].member.part_at_hand()
        return part

    def take_part(self, model: Any) -> None:
        self._rounds[model].member.take_part()

    def end(self, model: Any) -> None:
        self._close(model)

    def _close(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds.pop(model).member.close()
