"""Networks that begin small and grow (neurogenesis): the script's model is the blueprint.

New neurons are drawn as initializers draw them, and read with weights of 0, so no output changes and the training goes
on where it was. Copies of old ones (Net2Net, arXiv 1511.05641) would keep the outputs too, but learn what their
originals learn.

Widths grow before the loss has stopped falling: networks that grow early end better than those that were trained out
first (AutoGrow, arXiv 1906.02909, which grows depth).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.dynamics import surgery
from matex_tf.dynamics.groups import can_change

_FEWEST = 4  # channels that a group begins with
_TIMES = 2.0  # by which widths grow at a time
_EARLY = 1.5  # power: steps with half of the widths are four times cheaper, so the first growths come soon


@dataclasses.dataclass
class Growth:
    """The growth of one model.

    Attributes:
        blueprint: the widths of the script's model, by group.
        rng: the same on every rank.
        steps: how often widths double until they are those of the blueprint.
        by: the part of the training after which they are.
        grown: how often they have.
        over: whether nothing can grow any more, or it has not paid beyond the blueprint.
    """

    blueprint: dict[str, int]
    rng: np.random.Generator
    steps: int = 0
    by: float = 1.0
    grown: int = 0
    over: bool = False

    @classmethod
    def begin(
        cls, model: Any, part: float, inputs: Sequence[Any] | None = None, seed: int = 0, by: float = 1.0
    ) -> Growth:
        """Let a model begin with a part of its widths.

        What reads fewer channels is scaled by the square root of how many there were for each, so that sums stay as
        large as initializers have made them.

        Args:
            model: of Keras 3, built.
            part: of the widths, above 0 and at most 1.
            inputs: see `channel_groups`.
            by: the part of the training after which the widths are those of the blueprint at the latest.
        """
        groups = [group for group in surgery.channel_groups(model, inputs) if can_change(group)]
        blueprint = {group.name: group.count for group in groups}
        gone, scales = {}, []
        for group in groups:
            left = min(group.count, max(_FEWEST, math.ceil(group.count * part)))
            if left < group.count:
                gone[group.name] = range(left, group.count)
                scales += [(one.variable, math.sqrt(group.count / left)) for one in group.read_by()]
        surgery.remove(model, gone, inputs)
        for variable, scale in scales:
            variable.assign(np.asarray(variable) * np.asarray(scale, np.asarray(variable).dtype))
        return cls(blueprint, np.random.default_rng(seed), math.ceil(math.log(1 / part, _TIMES)), by)

    @property
    def due(self) -> float:
        """The part of the training after which widths grow though the loss still falls; then infinite."""
        return self.by * ((self.grown + 1) / self.steps) ** _EARLY if self.grown < self.steps else math.inf

    def grow(self, model: Any, beyond: float = 1.0, inputs: Sequence[Any] | None = None, paid: bool = True) -> str:
        """Let all groups grow, up to the blueprint.

        Args:
            beyond: how many times the widths of the blueprint they may have.
            paid: whether the loss has fallen at all of late; beyond the blueprint nothing grows where it has not.

        Returns:
            What has grown, in words; "" where nothing can any more.
        """
        more: dict[str, int] = {}
        self.over = True
        for group in surgery.channel_groups(model, inputs):
            most = math.ceil(self.blueprint.get(group.name, 0) * (beyond if paid else min(beyond, 1.0)))
            wanted = min(most, math.ceil(group.count * _TIMES))
            if can_change(group) and wanted > group.count:
                more[group.name] = wanted - group.count
                self.over = self.over and wanted == most
        if not more:
            return ""
        self.grown += 1
        before = int(model.count_params())
        surgery.add(model, more, self.rng, "new", inputs)
        return f"{sum(more.values())} neurons put in: {before:,} parameters are now {int(model.count_params()):,}"
