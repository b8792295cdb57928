"""Which channels a model can do without, and what the others take over for them.

Three kinds of neurons are redundant (arXiv 1610.00790, and what has been found since): those that are nearly dead,
those that are nearly what other neurons of the layer give, up to a factor, and those that the loss hardly minds. One
formula has all three. Let a reader compute z = xW, with H = E[x xᵀ] over rows, and d_o = E[(∂L/∂z_o)²]. If channels S
go, and the others take their share by least squares, then z changes least, the loss rises by about

    ½ Σ_o d_o · w_oSᵀ ([H⁻¹]_SS)⁻¹ w_oS        and the weights of the others change by        -H⁻¹_:S ([H⁻¹]_SS)⁻¹ W_S

That is the Optimal Brain Surgeon (Hassibi and Stork, NIPS 1992) for a whole channel, as in ZipLM (arXiv 2302.04089,
eq. 2 and 3), with a diagonal Fisher matrix of the outputs (as in arXiv 1905.05934). A dead neuron has a row of 0 in H;
of two proportional ones the first takes the weights of the other, times the factor; where the loss is flat, d is 0. A
bias is the weight of an input that is always 1, so a neuron that is always the same is taken into it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from matex_tf.dynamics.channels.analysis import READS, Part
from matex_tf.dynamics.groups import Group, Groups, can_change
from matex_tf.dynamics.measure import Measured, Reader

_RIDGE = 1e-4  # of the mean of the diagonal of H: what is below it is noise
_KEPT = 0.05  # a group keeps at least so much of its channels


@dataclasses.dataclass
class Candidates:
    """The channels of a group in the order in which they could go.

    Attributes:
        order: their places in the group.
        rise: (len(order),), what the loss is estimated to rise by with each.
        saved: parameters that go with a channel.
    """

    group: Group
    order: list[int]
    rise: np.ndarray
    saved: float


def candidates(groups: Groups, measured: Measured) -> list[Candidates]:
    """For each group the order in which channels could go; not for those over which a normalization looks."""
    result = []
    for group in groups:
        if can_change(group):
            order, rise = _Elimination(groups, group, measured).run(group.count - max(1, int(_KEPT * group.count)))
            result.append(Candidates(group, order, np.array(rise), _saved(group)))
    return result


def within(found: Iterable[Candidates], rise: float) -> dict[str, list[int]]:
    """The channels that save most parameters for a rise of the loss by at most so much, by group."""
    steps = []
    for one in found:
        # A channel goes after those before it: it is as dear as the dearest of them.
        price = np.maximum.accumulate(one.rise / one.saved)
        steps += [(price[number], one.rise[number], one.group.name, place) for number, place in enumerate(one.order)]
    steps.sort(key=lambda step: step[0])  # stable: the same on every rank
    chosen: dict[str, list[int]] = {}
    for _, increase, name, place in steps:
        rise -= increase
        if rise < 0:
            break
        chosen.setdefault(name, []).append(place)
    return chosen


def weights_without(groups: Groups, measured: Measured, chosen: dict[str, list[int]]) -> list[tuple[Any, np.ndarray]]:
    """Variables with values such that nothing reads the chosen channels, and others have taken their share."""
    parts = groups.analysis.parts
    seen = {number: _Seen(reader, measured.rows) for number, reader in measured.readers.items()}
    changed: dict[int, tuple[Any, np.ndarray]] = {}
    for name, places in chosen.items():
        gone = groups[name].channels[list(places)]
        for number, part in enumerate(parts):
            if number in seen and part in groups[name].parts:
                for channel in gone:
                    seen[number].take_out(seen[number].block(channel))
            elif number in measured.first_order and part in groups[name].parts:
                _add(changed, part.variable, _without(part, gone))
    for one in seen.values():
        for variable, difference in one.differences():
            _add(changed, variable, difference)
    return [(variable, np.asarray(variable, np.float64) + more) for variable, more in changed.values() if more.any()]


def _add(changed: dict[int, tuple[Any, np.ndarray]], variable: Any, more: np.ndarray) -> None:
    before = changed.get(id(variable), (variable, 0.0))[1]
    changed[id(variable)] = variable, before + more


def _without(part: Part, gone: np.ndarray) -> np.ndarray:
    """By what a variable changes when nothing reads these channels."""
    value = np.asarray(part.variable, np.float64)
    mask = np.isin(part.channels, gone).reshape([-1 if axis == part.axis else 1 for axis in range(value.ndim)])
    return -value * mask


def _saved(group: Group) -> float:
    """Parameters that a channel of a group has in all variables."""
    return float(
        sum(np.prod(part.variable.shape) * np.isin(part.channels, group.channels).mean() for part in group.parts)
        / group.count
    )


class _Elimination:
    """Takes channels out of one group, one after the other."""

    def __init__(self, groups: Groups, group: Group, measured: Measured):
        self._group = group
        numbers = [n for n, part in enumerate(groups.analysis.parts) if part.role == READS and part in group.parts]
        self._seen = [_Seen(measured.readers[n], measured.rows) for n in numbers if n in measured.readers]
        self._blocks = [[seen.block(channel) for channel in group.channels] for seen in self._seen]
        self._first_order = np.zeros(group.count)
        for n in numbers:
            if n in measured.first_order:
                of = groups.analysis.parts[n].channels
                for place, channel in enumerate(group.channels):
                    self._first_order[place] += measured.first_order[n][of == channel].sum()

    def run(self, count: int) -> tuple[list[int], list[float]]:
        """The cheapest channel first, then the cheapest of the others once that is gone, and so on."""
        left = np.ones(self._group.count, bool)
        order: list[int] = []
        rise: list[float] = []
        for _ in range(count):
            costs = self._first_order.copy()
            for seen, blocks in zip(self._seen, self._blocks, strict=True):
                costs += seen.costs(blocks)
            place = int(np.argmin(np.where(left, costs, np.inf)))
            order.append(place)
            rise.append(max(float(costs[place]), 0.0))
            left[place] = False
            for seen, blocks in zip(self._seen, self._blocks, strict=True):
                seen.take_out(blocks[place])
        return order, rise


class _Seen:
    """The weights of one reader as rows for its inputs, while channels go."""

    def __init__(self, reader: Reader, rows: float):
        self._reader = reader
        kernel = np.asarray(reader.part.variable, np.float64)
        self._front = np.moveaxis(kernel, reader.inputs, range(len(reader.inputs)))
        width = len(reader.gram) - 1
        weights = self._front.reshape(width, -1)
        bias = getattr(reader.layer, "bias", None)
        self._bias = bias if bias is not None and len(bias.shape) == 1 else None
        size = width + (self._bias is not None)
        gram = reader.gram[:size, :size] / max(reader.gram[-1, -1], 1.0)
        ridge = _RIDGE * max(float(np.trace(gram[:width, :width])) / width, 1e-12)
        self._inverse = np.linalg.inv(gram + ridge * np.eye(size))
        self._before = np.concatenate([weights, np.zeros((size - width, weights.shape[1]))])
        self._weights = self._before.copy()
        self._by_output = np.tile(reader.squares / max(rows, 1.0), weights.shape[1] // len(reader.squares))
        self._channels = np.repeat(reader.part.channels, width // len(reader.part.channels))

    def block(self, channel: int) -> np.ndarray:
        """The rows that read a channel."""
        return np.flatnonzero(self._channels == channel)

    def costs(self, blocks: list[np.ndarray]) -> np.ndarray:
        """What the loss would rise by, for the channels that have these rows."""
        if all(len(block) == 1 for block in blocks):
            rows = np.concatenate(blocks)
            squares = (self._weights[rows] ** 2) @ self._by_output
            return 0.5 * squares / np.maximum(np.diag(self._inverse)[rows], 1e-300)
        return np.array([self._cost(block) for block in blocks])

    def _cost(self, block: np.ndarray) -> float:
        own = self._weights[block]
        if not own.any():
            return 0.0
        return float(0.5 * ((own * np.linalg.solve(self._inverse[np.ix_(block, block)], own)).sum(0) @ self._by_output))

    def take_out(self, block: np.ndarray) -> None:
        """Let the other rows take the share of these."""
        inner = self._inverse[np.ix_(block, block)]
        to_others = self._inverse[:, block]
        self._weights -= to_others @ np.linalg.solve(inner, self._weights[block])
        self._inverse -= to_others @ np.linalg.solve(inner, to_others.T)
        self._weights[block] = 0.0
        self._inverse[block, :] = self._inverse[:, block] = 0.0
        self._inverse[block, block] = 1.0

    def differences(self) -> list[tuple[Any, np.ndarray]]:
        """By what the kernel changes, and the bias."""
        change, inputs = self._weights - self._before, self._reader.inputs
        width = len(self._reader.gram) - 1
        kernel = np.moveaxis(change[:width].reshape(self._front.shape), range(len(inputs)), inputs)
        found: list[tuple[Any, np.ndarray]] = [(self._reader.part.variable, kernel)]
        if self._bias is not None:
            found.append((self._bias, change[width].reshape(-1, int(self._bias.shape[0])).sum(0)))
        return found
