"""The groups of channels of a model: what can be taken out or put in, and what goes with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.features.dynamics.channels import trace
from matex_tf.features.dynamics.channels.analysis import MAKES, OWN, READS, Analysis, Part


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Channels that live in the same variables, and so can stand in for each other.

    Attributes:
        name: of the layer that makes them; with `.heads` for the heads of an attention layer.
        layers: the names of all layers that make them, tied by the model's graph.
        channels: (count,) int64, their numbers in the analysis, in the order of the first layer.
        parts: where they are in variables, see `Part`.
        together: whether something is computed over all of them, as by LayerNormalization: taking one out, or putting
            one in, changes what the others give.
    """

    name: str
    layers: tuple[str, ...]
    channels: np.ndarray
    parts: tuple[Part, ...]
    together: bool

    @property
    def count(self) -> int:
        return len(self.channels)

    def read_by(self) -> list[Part]:
        """Where they are read: rows of the next kernels."""
        return [part for part in self.parts if part.role == READS]

    def made_by(self) -> list[Part]:
        """Where they are made: columns of kernels, and biases."""
        return [part for part in self.parts if part.role == MAKES]


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
    """The groups of one model, in the order of its layers, as it is now: after a change they have to be made anew.

    Attributes:
        left_whole: by the name of a layer, why nothing is changed around it.
        analysis: what was found out about the model.
    """

    model: Any
    found: tuple[Group, ...]
    left_whole: dict[str, str]
    analysis: Analysis

    def __iter__(self) -> Any:
        return iter(self.found)

    def __getitem__(self, name: str) -> Group:
        """The group with this name, or one of whose layers has it.

        Raises:
            KeyError: there is none; says which there are.
        """
        for group in self.found:
            if group.name == name:
                return group
        for group in self.found:
            if name in group.layers:
                return group
        known = ", ".join(one.name for one in self.found) or "none"
        raise KeyError(f"{self.model.name} has no channels named {name} that could change; those that could: {known}")


def can_change(group: Group) -> bool:
    """Whether channels of a group may come and go in a training: nothing normalizes over them, no weight is frozen."""
    trained = all(part.variable.trainable for part in group.parts if part.role != OWN)
    return trained and not group.together and group.count > 1


def channel_groups(model: Any, inputs: Sequence[Any] | None = None) -> Groups:
    """Work out which channels of a model can change, and what changes with each.

    Args:
        model: of Keras 3, built: Sequential, functional, or of a class of the script's own whose `call` takes symbolic
            tensors.
        inputs: for a model with a `call` of its own: tensors like its inputs.

    Raises:
        ValueError: the model is not built, or nobody knows the shapes of its inputs.
    """
    if not model.built:
        raise ValueError(f"{model.name} is not built yet: call it on some data, or give it an Input")
    analysis = trace.analyse(model, inputs)
    fixed, together = analysis.fixed, analysis.normalized_together
    where: dict[int, dict[int, None]] = {}  # of each channel the parts that it is in, in their order
    for number, part in enumerate(analysis.parts):
        for channel in dict.fromkeys(part.channels.tolist()):
            where.setdefault(channel, {})[number] = None
    alike: dict[tuple[int, ...], list[int]] = {}
    for channel, numbers in where.items():
        makes = any(analysis.parts[number].role == MAKES for number in numbers)
        reads = any(analysis.parts[number].role == READS for number in numbers)
        if channel not in fixed and makes and reads:
            alike.setdefault(tuple(numbers), []).append(channel)
    found = [_group(analysis, numbers, channels, together) for numbers, channels in alike.items()]
    return Groups(model, tuple(_named_apart(found)), analysis.left_whole, analysis)


def _group(analysis: Analysis, numbers: Sequence[int], channels: Sequence[int], together: set[int]) -> Group:
    parts = tuple(analysis.parts[number] for number in numbers)
    first = next(part for part in parts if part.role == MAKES)
    among = set(channels)
    order = [channel for channel in dict.fromkeys(first.channels.tolist()) if channel in among]
    layers = tuple(dict.fromkeys(part.layer.name for part in parts if part.role == MAKES))
    kinds = [what for _, what, begin in analysis.makers if begin <= min(order)]
    name = layers[0] + (".heads" if kinds and kinds[-1] == "heads" else "")
    return Group(name, layers, np.array(order, np.int64), parts, bool(among & together))


def _named_apart(groups: Sequence[Group]) -> list[Group]:
    """The channels of one layer may be of several groups: `dense`, `dense.2`."""
    seen: dict[str, int] = {}
    result = []
    for group in groups:
        seen[group.name] = seen.get(group.name, 0) + 1
        number = seen[group.name]
        result.append(group if number == 1 else dataclasses.replace(group, name=f"{group.name}.{number}"))
    return result
