"""Networks that begin small and grow (neurogenesis): the script's model is the blueprint.

Neurons are split such that no output changes (Net2Net, arXiv 1511.05641), so the training goes on where it was.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from matex_tf.dynamics import depth, surgery
from matex_tf.dynamics.groups import can_change

_FEWEST = 4  # channels that a group begins with
_RESTING = 2  # channels of a block that has not begun
_TIMES = 2.0  # by which widths grow at a time


@dataclasses.dataclass
class Growth:
    """The growth of one model.

    Attributes:
        blueprint: the widths of the script's model, by group.
        rng: the same on every rank.
        waiting: blocks that have not begun yet, by the names of the groups within them; see `depth`.
    """

    blueprint: dict[str, int]
    rng: np.random.Generator
    waiting: list[list[str]] = dataclasses.field(default_factory=list)

    @classmethod
    def begin(
        cls, model: Any, part: float, inputs: Sequence[Any] | None = None, seed: int = 0, by_depth: bool = False
    ) -> Growth:
        """Let a model begin with a part of its widths.

        What reads fewer channels is scaled by the square root of how many there were for each, so that sums stay as
        large as initializers have made them.

        Args:
            model: of Keras 3, built.
            part: of the widths, above 0 and at most 1.
            inputs: see `channel_groups`.
            by_depth: whether blocks that repeat an earlier one wait.
        """
        found = surgery.channel_groups(model, inputs)
        groups = [group for group in found if can_change(group)]
        blueprint = {group.name: group.count for group in groups}
        waiting = depth.repeated(found) if by_depth else []
        resting = {name for names in waiting for name in names}
        gone, scales = {}, []
        for group in groups:
            left = min(group.count, max(_FEWEST, math.ceil(group.count * part)))
            if group.name in resting:
                left = min(left, _RESTING)
                scales += [(one.variable, 0.0) for one in group.read_by()]
            if left < group.count:
                gone[group.name] = range(left, group.count)
            if left < group.count and group.name not in resting:
                scales += [(one.variable, math.sqrt(group.count / left)) for one in group.read_by()]
        surgery.remove(model, gone, inputs)
        for variable, scale in scales:
            variable.assign(np.asarray(variable) * np.asarray(scale, np.asarray(variable).dtype))
        return cls(blueprint, np.random.default_rng(seed), waiting)

    def has_enough(self, model: Any, groups: Iterable[str]) -> None:
        """Some of these groups' neurons were redundant: they grow no further."""
        for group in surgery.channel_groups(model):
            if group.name in set(groups):
                self.blueprint[group.name] = 0

    def grow(self, model: Any, beyond: float = 1.0, inputs: Sequence[Any] | None = None, paid: bool = True) -> str:
        """Let all groups grow, up to the blueprint.

        Args:
            beyond: how many times the widths of the blueprint they may have.
            paid: whether the loss has fallen at all of late; beyond the blueprint nothing grows where it has not.

        Returns:
            What has grown, in words; "" where nothing can any more.
        """
        begun = [self.waiting.pop(0) for _ in range(math.ceil(len(self.waiting) / 2))]
        rests = {name for names in self.waiting for name in names}
        begins = {name for names in begun for name in names}
        part = self._part(model, inputs)
        more: dict[str, int] = {}
        anew: dict[str, int] = {}
        for group in surgery.channel_groups(model, inputs):
            most = math.ceil(self.blueprint.get(group.name, 0) * (beyond if paid else min(beyond, 1.0)))
            wanted = min(most, math.ceil(group.count * _TIMES))
            if group.name in begins:
                wanted = min(most, math.ceil(self.blueprint[group.name] * part * _TIMES))
            if can_change(group) and wanted > group.count and group.name not in rests:
                (anew if group.name in begins else more)[group.name] = wanted - group.count
        if not more and not anew:
            return ""
        before = int(model.count_params())
        surgery.add(model, more, self.rng, inputs=inputs)
        surgery.add(model, anew, self.rng, "new", inputs)
        blocks = f"{len(begun)} blocks begin, " if begun else ""
        count = sum(more.values()) + sum(anew.values())
        return f"{blocks}{count} neurons put in: {before:,} parameters are now {int(model.count_params()):,}"

    def _part(self, model: Any, inputs: Sequence[Any] | None) -> float:
        """The part of its blueprint that the model has, where no block is waiting."""
        rests = {name for names in self.waiting for name in names}
        widths = [
            (group.count, self.blueprint[group.name])
            for group in surgery.channel_groups(model, inputs)
            if group.name in self.blueprint and group.name not in rests and group.count > _RESTING
        ]
        return max((count / whole for count, whole in widths if whole), default=1.0)
