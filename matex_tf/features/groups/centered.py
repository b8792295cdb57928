"""What elastic and server have in common: groups that train apart, each as sync does, around a center.

A strategy has one `CenterRounds` for each model that trains. What it does after a step stands in the strategy's own
file.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from matex_tf.features.groups.apart import Apart
from matex_tf.features.groups.options import GroupOptions
from matex_tf.settings import Settings

if TYPE_CHECKING:
    from matex_tf.core.world import World
    from matex_tf.features.groups.center.member import Member


class CenterRounds:
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


class Centered(Apart):
    """Groups that train apart around a center."""

    codecs = ("int8",)
    has_center: ClassVar[bool] = True

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.apart = self.deals_parts = not self.synchronous
        self._progress: weakref.WeakKeyDictionary[Any, Sequence[Any]] = weakref.WeakKeyDictionary()

    def of_member(self, member: Member) -> CenterRounds:
        """The rounds of a model that begins to train."""
        raise NotImplementedError

    def note_progress(self, model: Any, variables: Sequence[Any]) -> None:
        self._progress[model] = list(variables)

    def rounds(self, model: Any, trainable: Sequence[Any]) -> CenterRounds:
        from matex_tf.core import world
        from matex_tf.features.groups.center.joining import Visitor
        from matex_tf.features.groups.center.member import Member

        self._close(model)
        guard = world.current().guard
        if guard is not None:
            guard.shares_batches = False  # parts of batches are dealt out to those that are left
        kind = Visitor if self.settings.is_guest else Member
        groups, network = self.groups_of(world.current()), self.settings.of(GroupOptions).center_network
        member = kind(groups, network, self.settings, trainable, self._progress.get(model, ()))
        member.begin_epoch()
        return self.of_member(member)

    def flush(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].settle()
            self._rounds[model].member.show()

    def begin_epoch(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].member.begin_epoch()

    def end_epoch(self, model: Any, batches: int) -> None:
        if model in self._rounds:
            self._rounds[model].settle()
            self._rounds[model].member.end_epoch(batches)

    def goes_on(self, model: Any) -> bool:
        return model not in self._rounds or self._rounds[model].member.goes_on()

    def parts_of_batch(self, model: Any, ranks: World) -> int:
        if model in self._rounds:
            parts: int = self._rounds[model].member.count
            return parts
        return super().parts_of_batch(model, ranks)

    def next_part(self, model: Any) -> int:
        part: int = self._rounds[model].member.part_at_hand()
        return part

    def take_part(self, model: Any) -> None:
        self._rounds[model].member.take_part()

    def end(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].member.end()
        self._close(model)

    def _close(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds.pop(model).member.close()
