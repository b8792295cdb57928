"""Redundant neurons go while a model trains (adaptive neuron apoptosis, arXiv 1610.00790).

A removal is tried on the weights first: what reads the neurons is set to 0, and the others take their share. If the
loss on the watched rows rises by more than the tolerance, that is taken back. Else the neurons are taken out, and the
step is compiled anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from matex_tf.core import world
from matex_tf.features.dynamics import choose, surgery
from matex_tf.features.dynamics.measure import Loss, Measured, Rows, loss_of, measure

_TRIES = 6  # removals, of which the largest is made that costs no more than it may
_NEAR = 0.5  # of what it may cost: one that costs more than this is large enough
_SAME = 1.5  # times the estimate: removals that are nearer to each other than this are nearly the same

_WHAT = "choose neurons to take out"


@dataclasses.dataclass(frozen=True)
class Removal:
    """What was taken out.

    Attributes:
        channels: how many, by group.
        before, after: the loss on the watched rows.
        parameters: of the model, before and after.
    """

    channels: dict[str, int]
    before: float
    after: float
    parameters: tuple[int, int]

    def __str__(self) -> str:
        few = ", ".join(f"{count} of {name}" for name, count in list(self.channels.items())[:4])
        more = f" and {len(self.channels) - 4} more" if len(self.channels) > 4 else ""
        return (
            f"{sum(self.channels.values())} neurons taken out ({few}{more}): {self.parameters[0]:,} parameters are now "
            f"{self.parameters[1]:,}; the loss on the watched rows went from {self.before:.5g} to {self.after:.5g}"
        )


def total(array: np.ndarray, what: str) -> np.ndarray:
    """The sum over all ranks, the same on each. Args: see `World.allreduce`."""
    return world.current().allreduce(array, what)


def remove_redundant(
    model: Any,
    seen: Sequence[Rows],
    watched: Sequence[Rows],
    tolerance: float,
    best: float = float("inf"),
    least: float | None = None,
    now: float | None = None,
    untrained: float = 0.0,
    loss: Loss | None = None,
) -> Removal | None:
    """Take out neurons that the model can do without. Every rank must call, and gets the same.

    Args:
        model: of Keras 3, built and compiled.
        seen: rows of this rank by which neurons are judged.
        watched: others, on which the loss may rise by no more than `tolerance`.
        tolerance: a part of the loss, such as 0.01. The loss is the geometric mean of the lowest one and `untrained`:
            of a network that has nearly fitted its rows, a part of the lowest loss alone would be nothing.
        best: the lowest loss on these rows so far, where they have always been the same.
        least: what a removal saves at least, see `choose.worth`, or it is not made: each costs a compilation. None: a
            tenth of the model.
        now: the loss on the watched rows, where that is known.
        untrained: the loss before the first step; 0 where it is not known, and then the lowest counts alone.
        loss: that of the model as it is, where somebody has it compiled already.

    Returns:
        None where too few neurons are redundant to be worth it.
    """
    count = int(model.count_params())
    least = 0.1 * count if least is None else least
    if count * (1 - choose.KEPT**2) < least:  # between two layers that keep so much of their channels each
        return None
    loss = Loss(model) if loss is None else loss
    before = loss_of(loss, watched, total) if now is None else now
    if not np.isfinite(before):
        return None
    lowest = min(before, best)
    known = untrained if math.isfinite(untrained) else 0.0
    allowed = lowest + tolerance * math.sqrt(abs(lowest) * max(known, abs(lowest))) - before
    if allowed < 0:
        return None  # what was taken out before has to be learnt again first
    groups = surgery.channel_groups(model)
    measured = measure(groups, seen, total)
    ranks = world.current()
    each = choose.worth(groups, measured)
    found = choose.candidates(groups, measured) if ranks.rank == 0 else []
    taken: tuple[dict[str, list[int]], list[tuple[int, np.ndarray]], float] | None = None
    search = _Search(allowed)
    for _ in range(_TRIES):
        if search.over:
            break
        plan = _plan(groups, measured, found, search.rise, least, each) if ranks.rank == 0 else None
        chosen, values, spent = ranks.broadcast(plan, _WHAT)
        if not chosen:
            search.too_few()
            continue
        if taken is not None and chosen == taken[0]:
            break  # there is no more to take
        with _assigned(model, values):
            after = loss_of(loss, watched, total)
        if search.holds(after - before, spent):
            taken = chosen, values, after
    if taken is None:
        return None
    chosen, values, after = taken
    for number, value in values:
        model.variables[number].assign(value)
    surgery.remove(model, chosen)
    sizes = {name: len(places) for name, places in chosen.items()}
    return Removal(sizes, before, after, (count, int(model.count_params())))


class _Search:
    """How large a removal can be. The estimate is right but for a factor, which is not known.

    It knows of one layer at a time, so with many neurons of all layers it is too low; and the squares of gradients are
    those of the loss at labels, which for a squared error are as small as the error itself.

    Attributes:
        rise: what the loss of the next one to try would rise by, as the estimate has it.
        over: whether the next one would hardly be another than the last that may be made, or would be too small.
    """

    def __init__(self, allowed: float):
        """Args: allowed: what the loss may rise by."""
        self._allowed = allowed
        self._low = self._high = 0.0
        self.rise = allowed / 4
        self.over = False

    def too_few(self) -> None:
        """This one saves too little."""
        self._go_on(True, 8.0)

    def holds(self, real: float, estimate: float) -> bool:
        """Take note of what the loss has risen by, and of what was estimated; whether it may.

        The estimate is less than what was asked for where all went that may go. In a network that has nearly fitted
        its rows that is so, as their gradients vanish.
        """
        may = real <= self._allowed
        if not may:
            self.rise = min(self.rise, estimate)
        self._go_on(may, self._allowed / real if real > 0 else 8.0)
        self.over |= (may and real >= _NEAR * self._allowed) or self.rise <= 0
        return may

    def _go_on(self, higher: bool, factor: float) -> None:
        if higher:
            self._low = self.rise
        else:
            self._high = self.rise
        if self._low and self._high:
            self.over = self._high / self._low < _SAME
            self.rise = math.sqrt(self._low * self._high)
        else:
            self.rise *= min(max(factor, 2.0), 8.0) if higher else max(min(factor, 0.5), 1 / 64)


@contextlib.contextmanager
def _assigned(model: Any, values: Sequence[tuple[int, np.ndarray]]) -> Iterator[None]:
    """Let variables of a model have other values for a while."""
    kept = [(model.variables[number], np.array(np.asarray(model.variables[number]))) for number, _ in values]
    try:
        for number, value in values:
            model.variables[number].assign(value)
        yield
    finally:
        for variable, value in kept:
            variable.assign(value)


def _plan(
    groups: surgery.Groups,
    measured: Measured,
    found: list[choose.Candidates],
    rise: float,
    least: float,
    each: dict[int, float],
) -> tuple[dict[str, list[int]], list[tuple[int, np.ndarray]], float]:
    """Which channels go, weights without them by the number of the variable, and what the loss is estimated to rise by.

    None go where they save too little.
    """
    chosen, spent = choose.within(found, rise)
    if choose.saved_by(groups, chosen, each) < least:
        return {}, [], spent
    numbers = {id(variable): number for number, variable in enumerate(groups.model.variables)}
    values = choose.weights_without(groups, measured, chosen)
    return (
        chosen,
        [
            (numbers[id(variable)], value if variable.dtype == "float64" else value.astype(np.float32))
            for variable, value in values
        ],
        spent,
    )
