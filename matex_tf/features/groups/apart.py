"""What local, elastic and server have in common: ranks, or groups of them, that train apart between meetings.

A strategy has one object of rounds for each model that trains: what it does before and after each of its steps.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from matex_tf import strategies
from matex_tf.errors import MatexError, SettingError
from matex_tf.features.groups.options import GroupOptions
from matex_tf.settings import Settings
from matex_tf.strategies.base import Gradient
from matex_tf.strategies.sync import Sync

if TYPE_CHECKING:
    from matex_tf.core.world import World
    from matex_tf.features.groups.membership import Groups
    from matex_tf.features.groups.patches.steps import GroupSteps


class Rounds(Protocol):
    """One model in one training."""

    def before_step(self) -> None:
        """The next step is about to begin."""

    def after_step(self) -> None:
        """A step has been made."""


class Apart(Sync):
    """Trains apart, unless its options make it sync.

    Attributes:
        synchronous: whether it is sync with these options.
        in_groups: whether `--groups` may let several ranks train as one.
        has_center: whether what all groups have in common lies on servers, see `features.groups.center`.
    """

    in_groups: ClassVar[bool] = True
    has_center: ClassVar[bool] = False

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.synchronous = self.is_synchronous()
        self.replicas_identical = self.synchronous
        self.only_in_fit = not self.synchronous
        self._rounds: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def is_synchronous(self) -> bool:
        """Whether it is sync with these options."""
        return False

    def rounds(self, model: Any, trainable: Sequence[Any]) -> Rounds:
        """The rounds of a model that begins to train. Collective.

        Args:
            trainable: its weights of floating point, at least one.
        """
        raise NotImplementedError

    def groups_of(self, ranks: World) -> Groups:
        """The groups of a world that train apart. Collective where it is asked for first."""
        from matex_tf.features.groups import membership

        return membership.of(ranks, self.settings.of(GroupOptions).groups)

    def begin_epoch(self, model: Any) -> None:
        """Where parts of batches are dealt out: they are dealt out anew. May be called before `begin`."""

    def end_epoch(self, model: Any, batches: int) -> None:
        """Where parts of batches are dealt out: all of an epoch have been taken.

        Args:
            batches: how many the epoch had.
        """

    def goes_on(self, model: Any) -> bool:
        """Whether the training goes on after this epoch, where the job that this group has joined says that."""
        return True

    def parts_of_batch(self, model: Any, ranks: World) -> int:
        """Into how many parts each batch is cut in this epoch, where groups train apart.

        Args:
            ranks: all that train.
        """
        return self.groups_of(ranks).count

    def next_part(self, model: Any) -> int:
        """Where parts of batches are dealt out, after `begin`: what this group trains on next, as the number of the
        batch in its epoch, times the parts of a batch, plus the number of the part."""
        raise NotImplementedError

    def take_part(self, model: Any) -> None:
        """That part is about to be trained on: let `next_part` be the one after it."""
        raise NotImplementedError

    def steps_apart(self, step: Any) -> GroupSteps:
        from matex_tf.features.groups.patches.steps import GroupSteps

        return GroupSteps(step)

    @classmethod
    def check(cls, settings: Settings, ranks: int) -> None:
        if settings.faults == "restart":
            raise SettingError(
                f"--strategy {cls.name} cannot be started again from a checkpoint: that has the weights of one rank or "
                "group, and each has its own. Take --faults shrink, --faults abort, or --strategy sync."
            )

    def exchange(self, gradients: Sequence[Gradient], names: Sequence[str]) -> list[Gradient]:
        from matex_tf.core import world

        alone = world.current().is_single or not self.averages_gradients
        return list(gradients) if alone else super().exchange(gradients, names)

    def begin(self, model: Any, trainable: Sequence[Any], state: Sequence[Any]) -> None:
        import tensorflow as tf

        if self.synchronous:
            return
        if not trainable:
            raise MatexError(
                f"{model.name} has no weights before its first step, and nobody could meet about them: call "
                "model.build(…) with the shape of its inputs before fit."
            )
        floats = [variable for variable in trainable if tf.as_dtype(variable.dtype).is_floating]
        self._rounds[model] = self.rounds(model, floats)

    def before_step(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].before_step()

    def after_step(self, model: Any) -> None:
        if model in self._rounds:
            self._rounds[model].after_step()


def current() -> Apart:
    """The strategy of this process, where it is one of groups."""
    strategy = strategies.current()
    assert isinstance(strategy, Apart)
    return strategy
