"""Networks that begin small and grow (neurogenesis): the script's model is the blueprint.

New neurons are drawn as initializers draw them, and read with weights of 0, so no output changes and the training goes
on where it was. Copies of old ones (Net2Net, arXiv 1511.05641) would keep the outputs too, but learn what their
originals learn.

Widths grow before the loss has stopped falling: networks that grow early end better than those that were trained out
first (AutoGrow, arXiv 1906.02909). Repeated blocks may wait too, see `depth`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.dynamics import depth, surgery
from matex_tf.dynamics.channels.analysis import Part
from matex_tf.dynamics.groups import can_change

_FEWEST = 4  # channels that a group begins with
_RESTING = 2  # channels within a block that has not begun
_TIMES = 2.0  # by which widths grow at a time
_EARLY = 1.5  # power: steps with half of the widths are four times cheaper, so the first growths come soon


@dataclasses.dataclass
class Growth:
    """The growth of one model.

    Attributes:
        blueprint: the widths of the script's model, by group.
        rng: the same on every rank.
        steps: how often widths double until they are what is wanted.
        by: the part of the training after which they are.
        part: of the blueprint's widths that the model has.
        grown: how often they have grown.
        waiting: blocks that have not begun, by the names of the groups within each.
        over: whether nothing can grow any more, or it has not paid beyond the blueprint.
    """

    blueprint: dict[str, int]
    rng: np.random.Generator
    steps: int = 0
    by: float = 1.0
    part: float = 1.0
    waiting: list[list[str]] = dataclasses.field(default_factory=list)
    grown: int = 0
    over: bool = False

    @classmethod
    def begin(
        cls,
        model: Any,
        part: float,
        inputs: Sequence[Any] | None = None,
        seed: int = 0,
        by: float = 1.0,
        by_depth: bool = False,
        to: float = 1.0,
    ) -> Growth:
        """Let a model begin with a part of its widths.

        What reads fewer channels is scaled by the square root of how many there were for each, so that sums stay as
        large as initializers have made them.

        Args:
            model: of Keras 3, built.
            part: of the widths, above 0 and at most 1.
            inputs: see `channel_groups`.
            by: the part of the training after which the widths are `to` of the blueprint's at the latest.
            by_depth: whether blocks that repeat an earlier one wait, with few channels from which nothing is read.
            to: how many times the blueprint's the widths are then.
        """
        found = surgery.channel_groups(model, inputs)
        waiting = depth.repeated(found) if by_depth else []
        rests = {name for names in waiting for name in names}
        blueprint, gone = {}, {}
        for group in (group for group in found if can_change(group)):
            blueprint[group.name] = group.count
            wanted = _RESTING if group.name in rests else max(_FEWEST, math.ceil(group.count * part))
            left = min(group.count, wanted)
            scale = 0.0 if group.name in rests else math.sqrt(group.count / left)
            for one in group.read_by() if scale != 1.0 else ():
                _scale(one, group.channels, scale)
            if left < group.count:
                gone[group.name] = range(left, group.count)
        surgery.remove(model, gone, inputs)
        steps = max(math.ceil(math.log(max(to / part, 1.0), _TIMES)), len(waiting).bit_length())
        return cls(blueprint, np.random.default_rng(seed), steps, by, part, waiting)

    @property
    def of_waiting(self) -> str:
        """How many blocks have not begun, in words; "" where there are none."""
        return f", and without {len(self.waiting)} of its repeated blocks" if self.waiting else ""

    @property
    def due(self) -> float:
        """The part of the training after which widths grow though the loss still falls; then infinite."""
        return self.by * ((self.grown + 1) / self.steps) ** _EARLY if self.grown < self.steps else math.inf

    def grow(self, model: Any, beyond: float = 1.0, inputs: Sequence[Any] | None = None, paid: bool = True) -> str:
        """Let all groups grow, up to the blueprint, and half of the blocks begin that have not.

        Args:
            beyond: how many times the widths of the blueprint they may have.
            paid: whether the loss has fallen at all of late; beyond the blueprint nothing grows where it has not.

        Returns:
            What has grown, in words; "" where nothing can any more.
        """
        begun = [self.waiting.pop(0) for _ in range(math.ceil(len(self.waiting) / 2))]
        begins = {name for names in begun for name in names}
        rests = {name for names in self.waiting for name in names}
        self.part *= _TIMES
        more: dict[str, int] = {}
        self.over = not rests
        for group in surgery.channel_groups(model, inputs):
            whole = self.blueprint.get(group.name, 0)
            most = math.ceil(whole * (beyond if paid else min(beyond, 1.0)))
            wanted = min(most, math.ceil(whole * self.part if group.name in begins else group.count * _TIMES))
            if can_change(group) and wanted > group.count and group.name not in rests:
                more[group.name] = wanted - group.count
                self.over = self.over and wanted == most
        if not more and not begun:
            return ""
        self.grown += 1
        before = int(model.count_params())
        surgery.add(model, more, self.rng, "new", inputs)
        blocks = f"{len(begun)} blocks begin, " if len(begun) > 1 else "1 block begins, " if begun else ""
        after = int(model.count_params())
        return f"{blocks}{sum(more.values())} neurons put in: {before:,} parameters are now {after:,}"


def _scale(part: Part, channels: np.ndarray, factor: float) -> None:
    """Multiply what reads some channels."""
    value = np.asarray(part.variable)
    part.variable.assign(value * np.where(part.places(channels), factor, 1.0).astype(value.dtype))
