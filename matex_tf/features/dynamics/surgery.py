"""Neurons are taken out of a Keras model, and put into it, while it trains.

A neuron is a channel of whatever layer: a unit, a filter, a head, a column of an embedding. What goes with it is worked
out from the model's graph (`channels/`). The model, its layers, its variables and its optimizer stay the same objects:
variables get other shapes, and `units`, `filters` and their like follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from matex_tf.errors import MatexError
from matex_tf.features.dynamics.change import Edit, carry_out
from matex_tf.features.dynamics.channels.analysis import MAKES, READS, Part
from matex_tf.features.dynamics.groups import Group, Groups, channel_groups

__all__ = ["Group", "Groups", "SurgeryError", "add", "channel_groups", "remove"]


class SurgeryError(MatexError):
    """A change of a model that cannot be made, or that would change what it computes."""


def remove(model: Any, gone: Mapping[str, Iterable[int]], inputs: Sequence[Any] | None = None) -> None:
    """Take channels out of a model.

    A channel that adds nothing to what reads it, since the rows that read it are 0, changes no output.

    Args:
        model: of Keras 3, built; it may be in `fit`.
        gone: for groups or layers, by their names, which of their channels go: places from 0.
        inputs: see `channel_groups`.

    Raises:
        SurgeryError: there is no such group or channel, or none would be left.
    """
    groups = channel_groups(model, inputs)
    leave: dict[int, None] = {}
    for name, indices in gone.items():
        group, places = _group(groups, name), sorted(set(map(int, indices)))
        if places and not 0 <= places[0] <= places[-1] < group.count:
            wrong = places[-1] if places[0] >= 0 else places[0]
            raise SurgeryError(f"{name} has channels 0 to {group.count - 1}, not {wrong}")
        if len(places) == group.count:
            raise SurgeryError(f"{name} would have no channel left: keep at least one of its {group.count}")
        leave.update({int(group.channels[place]): None for place in places})
    if not leave:
        return
    out = np.array(list(leave))

    def places_of(channels: np.ndarray) -> np.ndarray:
        return np.flatnonzero(~np.isin(channels, out))

    edits = [
        Edit(part, places_of(part.channels)) for part in groups.analysis.parts if np.isin(part.channels, out).any()
    ]
    carry_out(model, groups.analysis, edits, places_of)


def add(
    model: Any,
    more: Mapping[str, int | Sequence[int]],
    rng: np.random.Generator,
    how: str = "split",
    inputs: Sequence[Any] | None = None,
) -> None:
    """Put channels into a model, such that no output changes.

    `split` (Net2WiderNet, arXiv 1511.05641, 4.1): a new channel is a copy of one that is there, and the weights that
    have read that one are divided between the two. They are divided in another proportion for each weight, so that the
    two learn different things from the first step on. `new`: a new channel is drawn as others were, and is read with
    weights of 0 at first.

    Args:
        model: of Keras 3, built; it may be in `fit`.
        more: for groups or layers, by their names, how many channels come, or the places of those to split.
        rng: draws which channels are split, proportions and new values; the same on every rank.
        how: `split` or `new`.
        inputs: see `channel_groups`.

    Raises:
        SurgeryError: there is no such group; something is computed over all its channels together, such as a
            LayerNormalization, which one more would change; it has one channel alone, which cannot be told from its
            repetitions.
    """
    assert how in ("split", "new"), how
    groups = channel_groups(model, inputs)
    sources: dict[int, list[int]] = {}  # the last channel of a group, and those that are split
    for name, wanted in more.items():
        group = _group(groups, name)
        if group.together:
            raise SurgeryError(
                f"{name} is left at {group.count} channels: a normalization is computed over all of them together, so "
                "one more would change what the model gives"
            )
        if group.count < 2:
            raise SurgeryError(f"{name} has one channel alone, and cannot grow")
        places = _drawn(group.count, wanted, rng) if isinstance(wanted, int) else list(map(int, wanted))
        if places:
            sources[int(group.channels[-1])] = [int(group.channels[place]) for place in places]
    if not sources:
        return

    def places_of(channels: np.ndarray) -> np.ndarray:
        return _inserted(channels, sources)[0]

    edits = []
    for part in groups.analysis.parts:
        if np.isin(part.channels, list(sources)).any():
            edits.append(_edit_of(part, sources, rng, how))
    carry_out(model, groups.analysis, edits, places_of)


def _group(groups: Groups, name: str) -> Group:
    try:
        return groups[name]
    except KeyError as error:
        raise SurgeryError(str(error.args[0])) from None


def _drawn(count: int, wanted: int, rng: np.random.Generator) -> list[int]:
    """Which channels are split: each once before one is split again."""
    rounds = [rng.permutation(count) for _ in range(-(-wanted // count))]
    return [int(place) for place in np.concatenate([*rounds, np.zeros(0, np.int64)])[:wanted]]


def _runs(channels: np.ndarray) -> dict[int, list[np.ndarray]]:
    """Where each channel stands: one run of places for each time that it is repeated, as by Flatten."""
    cuts = np.flatnonzero(np.diff(channels)) + 1
    found: dict[int, list[np.ndarray]] = {}
    for run in np.split(np.arange(len(channels)), cuts):
        found.setdefault(int(channels[run[0]]), []).append(run)
    return found


def _inserted(channels: np.ndarray, sources: Mapping[int, Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """New channels behind the last one of their group, wherever that stands.

    Returns:
        The old place of each new one, and which are new; both of the new size.
    """
    if not np.isin(channels, list(sources)).any():
        return np.arange(len(channels)), np.zeros(len(channels), bool)
    runs = _runs(channels)
    behind = {
        int(run[-1]): [runs[source][number] for source in split]
        for last, split in sources.items()
        for number, run in enumerate(runs.get(last, ()))
    }
    take: list[int] = []
    fresh: list[bool] = []
    for place in range(len(channels)):
        take.append(place)
        fresh.append(False)
        for copied in behind.get(place, ()):
            take += copied.tolist()
            fresh += [True] * len(copied)
    return np.array(take), np.array(fresh)


def _edit_of(part: Part, sources: Mapping[int, Sequence[int]], rng: np.random.Generator, how: str) -> Edit:
    take, fresh = _inserted(part.channels, sources)
    if part.role == READS:
        return _Divided(part, take, rng) if how == "split" else _Fresh(part, take, fresh, None)
    if part.role == MAKES and how == "new" and "bias" not in part.variable.name:
        return _Fresh(part, take, fresh, rng)
    return Edit(part, take)


class _Divided(Edit):
    """Places that were taken several times have shares of what was there, in other proportions for each weight."""

    def __init__(self, part: Part, take: np.ndarray, rng: np.random.Generator):
        super().__init__(part, take)
        self._rng = rng
        self._shares: np.ndarray | None = None

    def value(self, array: np.ndarray) -> np.ndarray:
        array = super().value(array)
        if self._shares is None:
            drawn = np.moveaxis(self._rng.uniform(0.5, 1.5, array.shape), self.part.axis, 0)
            total = np.zeros((int(self.take.max()) + 1, *drawn.shape[1:]))
            np.add.at(total, self.take, drawn)
            self._shares = np.moveaxis(drawn / total[self.take], 0, self.part.axis)
        return (array * self._shares).astype(array.dtype)


class _Fresh(Edit):
    """New places hold values of their own, and optimizers know nothing of them yet."""

    def __init__(self, part: Part, take: np.ndarray, fresh: np.ndarray, rng: np.random.Generator | None):
        """Args: rng: draws them like the ones that are there; None for 0."""
        super().__init__(part, take)
        self._fresh, self._rng = fresh, rng
        self._values: np.ndarray | None = None

    def value(self, array: np.ndarray) -> np.ndarray:
        array = super().value(array)
        if self._values is None:
            self._values = np.zeros(array.shape, array.dtype)
            if self._rng is not None:
                self._values = self._rng.normal(0.0, array.std(), array.shape).astype(array.dtype)
        return self._with(array, self.part.axis, self._values)

    def slot(self, array: np.ndarray, axis: int) -> np.ndarray:
        array = super().slot(array, axis)
        return self._with(array, axis, np.zeros_like(array))

    def _with(self, array: np.ndarray, axis: int, values: np.ndarray) -> np.ndarray:
        place = tuple(self._fresh if one == axis else slice(None) for one in range(array.ndim))
        array[place] = values[place]
        return array
