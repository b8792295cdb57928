"""Redundant neurons go while a model trains (adaptive neuron apoptosis, arXiv 1610.00790).

A removal is tried on the weights first: what reads the neurons is set to 0, and the others take their share. If the
loss on the watched rows rises by more than the tolerance, that is taken back. Else the neurons are taken out, and the
step is compiled anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.core import world
from matex_tf.dynamics import choose, surgery
from matex_tf.dynamics.measure import Measured, Rows, loss_of, measure

#: What the loss may rise by as the estimate has it, in times of the tolerance; the first that holds is taken.
_TRIES = (16.0, 4.0, 1.0, 0.25)
#: A removal saves at least this part of the parameters, or is not worth a compilation.
_LEAST = 0.1

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
    """The sum over all ranks, the same on each."""
    return world.current().allreduce(array, what)


def remove_redundant(
    model: Any,
    seen: Sequence[Rows],
    watched: Sequence[Rows],
    tolerance: float,
    best: float = float("inf"),
    inputs: Sequence[Any] | None = None,
) -> Removal | None:
    """Take out neurons that the model can do without. Every rank must call, and gets the same.

    Args:
        model: of Keras 3, built and compiled.
        seen: rows of this rank by which neurons are judged.
        watched: others, on which the loss may rise by no more than `tolerance`.
        tolerance: a part of the loss, such as 0.01.
        best: the lowest loss on these rows so far, where they have always been the same.
        inputs: see `channel_groups`.

    Returns:
        None where too few neurons are redundant to be worth it.
    """
    groups = surgery.channel_groups(model, inputs)
    measured = measure(groups, seen, total)
    before = loss_of(model, watched, total)
    if not np.isfinite(before):
        return None
    allowed = min(before, best) + tolerance * abs(min(before, best)) - before
    if allowed < 0:
        return None  # what was taken out before has to be learnt again first
    ranks = world.current()
    found = choose.candidates(groups, measured) if ranks.rank == 0 else []
    count = int(model.count_params())
    for times in _TRIES:
        plan = _plan(groups, measured, found, times * allowed, count) if ranks.rank == 0 else None
        chosen, values = ranks.broadcast(plan, _WHAT)
        if not chosen:
            return None
        kept = [(model.variables[number], np.array(np.asarray(model.variables[number]))) for number, _ in values]
        for number, value in values:
            model.variables[number].assign(value)
        after = loss_of(model, watched, total)
        if after <= before + allowed:
            surgery.remove(model, chosen, inputs)
            sizes = {name: len(places) for name, places in chosen.items()}
            return Removal(sizes, before, after, (count, int(model.count_params())))
        for variable, value in kept:
            variable.assign(value)
    return None


def _plan(
    groups: surgery.Groups, measured: Measured, found: list[choose.Candidates], rise: float, count: int
) -> tuple[dict[str, list[int]], list[tuple[int, np.ndarray]]]:
    """Which channels go, and weights without them by the number of the variable; none where they save too little."""
    chosen = choose.within(found, rise)
    saved = {one.group.name: one.saved for one in found}
    if sum(saved[name] * len(places) for name, places in chosen.items()) < _LEAST * count:
        return {}, []
    numbers = {id(variable): number for number, variable in enumerate(groups.model.variables)}
    values = choose.weights_without(groups, measured, chosen)
    return chosen, [(numbers[id(variable)], value.astype(np.float32)) for variable, value in values]
