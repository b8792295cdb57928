"""Networks that begin small and grow (neurogenesis): the script's model is the blueprint.

New neurons are drawn as initializers draw them, and read with weights of 0, so no output changes and the training goes
on where it was. Copies of old ones (Net2Net, arXiv 1511.05641) would keep the outputs too, but learn what their
originals learn.

Widths grow before the loss has stopped falling: networks that grow early end better than those that were trained out
first (AutoGrow, arXiv 1906.02909). Repeated blocks may wait too until the widths are there, see `depth`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.features.dynamics import depth, resting, surgery
from matex_tf.features.dynamics.change import compile_anew
from matex_tf.features.dynamics.channels.analysis import Part
from matex_tf.features.dynamics.groups import Groups, can_change
from matex_tf.features.dynamics.resting import Branch

_FEWEST = 4  # channels that a group begins with
_RESTING = 2  # channels within a block that has not begun
_TIMES = 2.0  # by which widths grow at a time
_EARLY = 1.5  # power: steps with half of the widths are four times cheaper, so the first growths come soon


@dataclasses.dataclass(eq=False)
class Block:
    """A repeated block that has not begun.

    Attributes:
        names: of the groups within it.
        branch: that nothing is computed of; None where that cannot be: then its few channels are trained.
    """

    names: list[str]
    branch: Branch | None

    def is_last(self, name: str) -> bool:
        """Whether what reads these channels gives what the block adds, and nothing sees to it that it gives 0."""
        return self.branch is None and name == self.names[-1]

    def rest(self, share: float) -> None:
        """Compute nothing of it, where that can be."""
        if self.branch is not None:
            self.branch.rest(share)

    def rest_again(self) -> None:
        """Go on resting; where it was trained in the meantime it is one that cannot be left out any more."""
        if self.branch is not None and self.branch.gives_nothing:
            self.branch.rest()
        else:
            self.branch = None

    def end(self) -> None:
        """Compute it again."""
        if self.branch is not None:
            self.branch.begin()


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
        waiting: blocks that have not begun.
        over: whether nothing can grow any more, or it has not paid beyond the blueprint.
    """

    blueprint: dict[str, int]
    rng: np.random.Generator
    steps: int = 0
    by: float = 1.0
    part: float = 1.0
    waiting: list[Block] = dataclasses.field(default_factory=list)
    grown: int = 0
    over: bool = False

    @classmethod
    def begin(
        cls,
        model: Any,
        part: float,
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
            by: the part of the training after which the widths are `to` of the blueprint's at the latest.
            by_depth: whether blocks that repeat an earlier one wait.
            to: how many times the blueprint's the widths are then.
        """
        found = surgery.channel_groups(model)
        waiting = _blocks(model, found) if by_depth else []
        rests = {name: block for block in waiting for name in block.names}
        blueprint, gone = {}, {}
        for group in (group for group in found if can_change(group)):
            blueprint[group.name] = group.count
            block = rests.get(group.name)
            left = min(group.count, max(_FEWEST, math.ceil(group.count * part)) if block is None else _RESTING)
            scale = math.sqrt(group.count / left) if block is None else 0.0 if block.is_last(group.name) else 1.0
            for one in group.read_by() if scale != 1.0 else ():
                _scale(one, group.channels, scale)
            if left < group.count:
                gone[group.name] = range(left, group.count)
        surgery.remove(model, gone)
        for block in waiting:
            block.rest(1 / math.sqrt(1 + len(waiting)))
        steps = math.ceil(math.log(max(to / part, 1.0), _TIMES)) + bool(waiting)
        return cls(blueprint, np.random.default_rng(seed), steps, by, part, waiting)

    @property
    def due(self) -> float:
        """The part of the training after which widths grow though the loss still falls; then infinite."""
        return self.by * ((self.grown + 1) / self.steps) ** _EARLY if self.grown < self.steps else math.inf

    def grow(self, model: Any, beyond: float = 1.0, paid: bool = True) -> str:
        """Let all groups grow, up to the blueprint; where they are there, the blocks begin that have not.

        Args:
            beyond: how many times the widths of the blueprint they may have.
            paid: whether the loss has fallen at all of late; beyond the blueprint nothing grows where it has not.

        Returns:
            What has grown, in words; "" where nothing can any more.
        """
        largest = beyond if paid else min(beyond, 1.0)
        begun: list[Block] = []
        if self.part >= 1.0:
            begun, self.waiting = self.waiting, []
        self.part *= _TIMES
        more, self.over = self._wider(model, largest)
        if not more and self.waiting:
            begun, self.waiting = self.waiting, []
            more, self.over = self._wider(model, largest)
        if not more and not begun:
            return ""
        self.grown += 1
        before = int(model.count_params())
        surgery.add(model, more, self.rng, "new")
        self._begin_blocks(model, begun)
        blocks = f"{len(begun)} blocks begin, " if len(begun) > 1 else "1 block begins, " if begun else ""
        after = int(model.count_params())
        return f"{blocks}{sum(more.values())} neurons put in: {before:,} parameters are now {after:,}"

    def _wider(self, model: Any, largest: float) -> tuple[dict[str, int], bool]:
        """How many channels come, by group, and whether none can come later."""
        more: dict[str, int] = {}
        over = not self.waiting
        rests = {name for block in self.waiting for name in block.names}
        for group in surgery.channel_groups(model):
            whole = self.blueprint.get(group.name, 0)
            most = math.ceil(whole * largest)
            wanted = min(most, max(math.ceil(group.count * _TIMES), math.ceil(whole * self.part)))
            if can_change(group) and wanted > group.count and group.name not in rests:
                more[group.name] = wanted - group.count
                over = over and wanted == most
        return more, over

    def _begin_blocks(self, model: Any, begun: Sequence[Block]) -> None:
        """Compute these blocks, whose channels have come.

        New channels are read with weights of 0. Where the last kernel is 0 anyway the others are drawn anew: two
        kernels of 0, one behind the other, would never learn.
        """
        branches = {name: block.branch for block in begun if block.branch is not None for name in block.names}
        zeros = {id(variable) for branch in branches.values() for variable in branch.zeros}
        for group in surgery.channel_groups(model) if branches else ():
            for part in group.read_by() if group.name in branches else ():
                value = np.asarray(part.variable)
                if id(part.variable) not in zeros and np.any(value):
                    drawn = self.rng.normal(0.0, value[value != 0].std(), value.shape)
                    part.variable.assign(np.where(part.places(group.channels), drawn, value).astype(value.dtype))
        for block in begun:
            block.end()
        if begun:
            compile_anew(model)

    def pause(self, model: Any) -> None:
        """After a `fit`: blocks that have not begun are computed, as the files say; they give 0."""
        for block in self.waiting:
            block.end()
        if self.waiting:
            compile_anew(model)

    def go_on(self) -> None:
        """Before another `fit` of the same model, which is compiled after this."""
        for block in self.waiting:
            block.rest_again()


def _blocks(model: Any, groups: Groups) -> list[Block]:
    """The blocks that may wait, each with the branch that holds its layers, where that can rest."""
    by_layer: dict[str, Branch] = {}
    for branch in resting.branches(model):
        for layer in branch.layers:
            by_layer.setdefault(layer.name, branch)
    blocks = []
    for names in depth.repeated(groups):
        layers = (layer for name in names for layer in groups[name].layers)
        blocks.append(Block(names, next((by_layer[layer] for layer in layers if layer in by_layer), None)))
    return blocks


def _scale(part: Part, channels: np.ndarray, factor: float) -> None:
    """Multiply what reads some channels."""
    value = np.asarray(part.variable)
    part.variable.assign(value * np.where(part.places(channels), factor, 1.0).astype(value.dtype))
