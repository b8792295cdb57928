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
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from matex_tf.features.dynamics.channels.analysis import READS, Part
from matex_tf.features.dynamics.groups import Group, Groups, can_change
from matex_tf.features.dynamics.measure import Measured, Reader

_RIDGE = 1e-4  # of the mean of the diagonal of H: what is below it is noise
#: A group keeps this part of its channels at least: what is left has to show how it does without the others.
KEPT = 0.25
_AT_ONCE = 64  # channels that are looked at while others wait


@dataclasses.dataclass
class Candidates:
    """The channels of a group in the order in which they could go.

    Attributes:
        order: their places in the group.
        rise: (len(order),), what the loss is estimated to rise by with each.
        saved: what goes with a channel, see `worth`.
    """

    group: Group
    order: list[int]
    rise: np.ndarray
    saved: float


def candidates(groups: Groups, measured: Measured) -> list[Candidates]:
    """For each group the order in which channels could go; not for those over which a normalization looks.

    Args:
        groups: of the model.
        measured: of the same groups; keeps the inverse of each reader's H, once it is worked out.
    """
    result, each = [], worth(groups, measured)
    for group in groups:
        if can_change(group):
            order, rise = _Elimination(groups, group, measured).run(group.count - max(1, math.ceil(KEPT * group.count)))
            result.append(Candidates(group, order, np.array(rise), _saved(group, each)))
    return result


def within(found: Iterable[Candidates], rise: float) -> tuple[dict[str, list[int]], float]:
    """The channels that save most for what they cost, by group; and what they raise the loss by, as estimated.

    Args:
        found: the candidates of all groups.
        rise: what the loss may rise by at most.
    """
    steps = []
    for one in found:
        # A channel goes after those before it: it is as dear as the dearest of them.
        price = np.maximum.accumulate(one.rise / one.saved)
        steps += [(price[number], one.rise[number], one.group.name, place) for number, place in enumerate(one.order)]
    steps.sort(key=lambda step: step[0])  # stable: the same on every rank
    chosen: dict[str, list[int]] = {}
    spent = 0.0
    for _, increase, name, place in steps:
        if spent + increase > rise:
            break
        spent += increase
        chosen.setdefault(name, []).append(place)
    return chosen, float(spent)


def worth(groups: Groups, measured: Measured) -> dict[int, float]:
    """What a weight of each variable is worth, by the variable's id; all weights together are worth their number.

    Half is for the weight, half for the multiplications of a row: a filter has few weights, and works at many places.

    Args:
        groups: of the model.
        measured: says at how many places of a row a variable works; where that is not known, one place.
    """
    places = {id(one.part.variable): one.gram[-1, -1] / max(measured.rows, 1.0) for one in measured.readers.values()}
    sizes = {id(part.variable): math.prod(part.variable.shape) for part in groups.analysis.parts}
    weights, work = sum(sizes.values()), sum(size * places.get(number, 1.0) for number, size in sizes.items())
    return {number: 0.5 + 0.5 * places.get(number, 1.0) * weights / work for number in sizes}


def saved_by(groups: Groups, chosen: dict[str, list[int]], each: dict[int, float]) -> float:
    """What goes with these channels.

    Args:
        each: what a weight of each variable is worth.
    """
    gone = np.concatenate([groups[name].channels[places] for name, places in chosen.items()] or [np.zeros(0, np.int64)])
    left: dict[int, list[int]] = {}
    before: dict[int, int] = {}
    for part in groups.analysis.parts:
        shape = [int(size) for size in part.variable.shape]
        before[id(part.variable)] = math.prod(shape)
        sizes = left.setdefault(id(part.variable), shape)
        sizes[part.axis] = min(sizes[part.axis], int((~np.isin(part.channels, gone)).sum()))
    return sum(each[number] * (before[number] - math.prod(sizes)) for number, sizes in left.items())


def weights_without(groups: Groups, measured: Measured, chosen: dict[str, list[int]]) -> list[tuple[Any, np.ndarray]]:
    """Variables with values such that nothing reads the chosen channels, and others have taken their share (as the top
    of this file has it).

    Args:
        groups: of the model.
        measured: of the same groups.
        chosen: places of channels by the name of their group.

    Returns:
        Those variables that change, each with its new value in float64.
    """
    parts = groups.analysis.parts
    seen = {number: _Seen(reader, measured.judged) for number, reader in measured.readers.items()}
    changed: dict[int, tuple[Any, np.ndarray]] = {}
    for name, places in chosen.items():
        gone = groups[name].channels[list(places)]
        for number, part in enumerate(parts):
            if number in seen and part in groups[name].parts:
                seen[number].system.take_out(np.concatenate([seen[number].block(channel) for channel in gone]))
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
    return -np.asarray(part.variable, np.float64) * part.places(gone)


def _saved(group: Group, each: dict[int, float]) -> float:
    """What a channel of a group has in all variables."""
    return float(
        sum(
            each[id(part.variable)] * np.prod(part.variable.shape) * np.isin(part.channels, group.channels).mean()
            for part in group.parts
        )
        / group.count
    )


class _Elimination:
    """Takes channels out of one group, one after the other."""

    def __init__(self, groups: Groups, group: Group, measured: Measured):
        self._group = group
        numbers = [n for n, part in enumerate(groups.analysis.parts) if part.role == READS and part in group.parts]
        self._seen = [_Seen(measured.readers[n], measured.judged) for n in numbers if n in measured.readers]
        self._blocks = [[seen.block(channel) for channel in group.channels] for seen in self._seen]
        self._first_order = np.zeros(group.count)
        for n in numbers:
            if n in measured.first_order:
                of = groups.analysis.parts[n].channels
                for place, channel in enumerate(group.channels):
                    self._first_order[place] += measured.first_order[n][of == channel].sum()

    def run(self, count: int) -> tuple[list[int], list[float]]:
        """The cheapest channel first, then the cheapest of the others once that is gone, and so on.

        What goes with a channel changes what all others cost. That is worked out at once for the few that are cheapest,
        and for the others when some of these have gone: with a matrix for many channels in place of a vector for each.
        """
        left = np.ones(self._group.count, bool)
        order: list[int] = []
        rise: list[float] = []
        while len(order) < count:
            costs = self._first_order + sum(
                seen.system.costs(blocks) for seen, blocks in zip(self._seen, self._blocks, strict=True)
            )
            cheapest = np.argsort(np.where(left, costs, np.inf), kind="stable")[: left.sum()]
            near, limit = cheapest[:_AT_ONCE], np.append(costs[cheapest[_AT_ONCE:]], np.inf)[0]
            gone, dear = self._among(near, limit, min(count - len(order), max(len(near) // 2, 1)))
            order += gone
            rise += dear
            left[gone] = False
            for seen, blocks in zip(self._seen, self._blocks, strict=True):
                seen.system.take_out(np.concatenate([blocks[place] for place in gone]))
        return order, rise

    def _among(self, near: np.ndarray, limit: float, most: int) -> tuple[list[int], list[float]]:
        """The order among a few channels, until one costs as much as the cheapest of the others; one at least."""
        systems = []
        for seen, blocks in zip(self._seen, self._blocks, strict=True):
            own = [blocks[place] for place in near]
            ends = np.cumsum([len(block) for block in own])
            systems.append((seen.system.of(np.concatenate(own)), np.split(np.arange(ends[-1]), ends[:-1])))
        left = np.ones(len(near), bool)
        order: list[int] = []
        rise: list[float] = []
        for _ in range(most):
            costs = self._first_order[near] + sum(system.costs(blocks) for system, blocks in systems)
            place = int(np.argmin(np.where(left, costs, np.inf)))
            if order and costs[place] > limit:
                break
            order.append(int(near[place]))
            rise.append(max(float(costs[place]), 0.0))
            left[place] = False
            for system, blocks in systems:
                system.take_out(blocks[place])
        return order, rise


class _System:
    """Rows of weights that take over for each other by least squares.

    Args:
        inverse: (n, n), of H.
        weights: (n, outputs).
        by_output: (outputs,), d.
    """

    def __init__(self, inverse: np.ndarray, weights: np.ndarray, by_output: np.ndarray):
        self._inverse, self.weights, self._by_output = inverse, weights, by_output

    def of(self, rows: np.ndarray) -> _System:
        """That of some rows, while the others stay."""
        return _System(self._inverse[np.ix_(rows, rows)], self.weights[rows], self._by_output)

    def costs(self, blocks: list[np.ndarray]) -> np.ndarray:
        """What the loss would rise by, for the channels that have these rows."""
        if len({len(block) for block in blocks}) > 1:
            return np.concatenate([self.costs([block]) for block in blocks])
        rows = np.stack(blocks)
        if rows.shape[1] == 1:
            squares = (self.weights[rows[:, 0]] ** 2) @ self._by_output
            return np.asarray(0.5 * squares / np.maximum(np.diag(self._inverse)[rows[:, 0]], 1e-300))
        own = self.weights[rows]
        solved = np.linalg.solve(self._inverse[rows[:, :, None], rows[:, None, :]], own)
        return np.asarray(0.5 * (own * solved).sum(1) @ self._by_output)

    def take_out(self, rows: np.ndarray) -> None:
        """Let the other rows take the share of these."""
        to_others = self._inverse[:, rows]
        solved = np.linalg.solve(to_others[rows], np.concatenate([self.weights[rows], to_others.T], 1))
        outputs = self.weights.shape[1]
        self.weights -= to_others @ solved[:, :outputs]
        self._inverse -= to_others @ solved[:, outputs:]
        self.weights[rows] = 0.0
        self._inverse[rows, :] = self._inverse[:, rows] = 0.0
        self._inverse[rows, rows] = 1.0


class _Seen:
    """The weights of one reader as rows for its inputs, while channels go."""

    def __init__(self, reader: Reader, judged: float):
        self._reader = reader
        kernel = np.asarray(reader.part.variable, np.float64)
        self._front = np.moveaxis(kernel, reader.inputs, range(len(reader.inputs)))
        width = len(reader.gram) - 1
        weights = self._front.reshape(width, -1)
        bias = getattr(reader.layer, "bias", None)
        self._bias = bias if bias is not None and len(bias.shape) == 1 else None
        size = width + (self._bias is not None)
        if reader.inverse is None:
            gram = reader.gram[:size, :size] / max(reader.gram[-1, -1], 1.0)
            ridge = _RIDGE * max(float(np.trace(gram[:width, :width])) / width, 1e-12)
            reader.inverse = np.linalg.inv(gram + ridge * np.eye(size))
        self._before = np.concatenate([weights, np.zeros((size - width, weights.shape[1]))])
        by_output = np.tile(reader.squares / max(judged, 1.0), weights.shape[1] // len(reader.squares))
        self.system = _System(reader.inverse.copy(), self._before.copy(), by_output)
        self._channels = np.repeat(reader.part.channels, width // len(reader.part.channels))

    def block(self, channel: int) -> np.ndarray:
        """The rows that read a channel."""
        return np.flatnonzero(self._channels == channel)

    def differences(self) -> list[tuple[Any, np.ndarray]]:
        """By what the kernel changes, and the bias."""
        change, inputs = self.system.weights - self._before, self._reader.inputs
        width = len(self._reader.gram) - 1
        kernel = np.moveaxis(change[:width].reshape(self._front.shape), range(len(inputs)), inputs)
        found: list[tuple[Any, np.ndarray]] = [(self._reader.part.variable, kernel)]
        if self._bias is not None:
            found.append((self._bias, change[width].reshape(-1, int(self._bias.shape[0])).sum(0)))
        return found
