"""What a rank holds of a value of the step: a label for each tensor of its graph.

    R               the whole value, the same on every rank: weights, the learning rate
    S(axis, blocks) its rows along an axis: the batch, activations, the loss of each row
    P(combine)      a part: the value is the sum (or the largest, the smallest, …) of what the ranks hold: a gradient
    L(inside)       a list of TensorFlow's, whose elements have the label `inside`
    F               its part of the elements, flat and in their order: an optimizer's slot in shards; the handle of a
                    variable that lies so has it too

An axis of S is `blocks` times the rows of the batch times a whole number of elements for each row, in this order.
So `concat([a, b], 0)` of two tensors of rows has two blocks. This is the vocabulary of GSPMD (arXiv 2105.04663,
section 3), for one axis and ragged batches.
"""

from __future__ import annotations

import dataclasses


class CannotPartition(Exception):
    """A step has something that cannot be cut by rows."""


@dataclasses.dataclass(frozen=True)
class Label:
    """See the module; `R`, `S`, `P`, `F` and `L` make them."""

    kind: str
    axis: int = -1
    blocks: int = 1
    combine: str = ""
    inside: Label | None = None

    def __repr__(self) -> str:
        if self.kind == "S":
            return f"S{self.axis}" + (f"/{self.blocks}" if self.blocks > 1 else "")
        if self.kind == "P":
            return "P" if self.combine == "sum" else f"P:{self.combine}"
        return f"L({self.inside})" if self.kind == "L" else self.kind

    @property
    def is_sum(self) -> bool:
        """Whether the value is the sum of what the ranks hold."""
        return self.kind == "P" and self.combine == "sum"


R = Label("R")
P = Label("P", combine="sum")
F = Label("F")


def S(axis: int, blocks: int = 1) -> Label:
    """This rank's rows along `axis`, counted from 0, in so many `blocks`."""
    return Label("S", axis, blocks)


def part(combine: str) -> Label:
    """A part of what is the "sum", "max", "min", "prod", "all" or "any" over the ranks."""
    return Label("P", combine=combine)


def L(inside: Label | None) -> Label:
    """A list of elements with one label; None while nothing is in it."""
    return Label("L", inside=inside)


def join(first: Label, second: Label) -> Label:
    """The label of what goes round a loop as `first` and comes back as `second`, or comes from two branches.

    R with S becomes S (a slice of it), so does R with F; R with P becomes P (one rank has all of it, the others 0);
    what else differs becomes whole.
    """
    if first == second:
        return first
    if first.kind == "L" and second.kind == "L":
        if first.inside is None or second.inside is None:
            return second if first.inside is None else first
        return L(join(first.inside, second.inside))
    kinds = {first.kind, second.kind}
    if "R" in kinds and (kinds & {"S", "F"} or first.is_sum or second.is_sum):
        return second if first.kind == "R" else first
    return R
