"""What of a step every rank computes whole, for a line: the ops that no rule knew, and how much follows from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from matex_tf.patches.partition.analysis import Node, Plan
from matex_tf.patches.partition.rules import draws
from matex_tf.patches.partition.shapes.shaped import numbers_of

#: Ops that are named; the others are counted.
_NAMED = 3

#: The part of a step's values from which on a line says that every rank computes it.
_WORTH_A_LINE = 0.01


@dataclasses.dataclass
class WholePart:
    """The part of a step that is computed whole.

    Attributes:
        ops: type and name of those for which no rule was found, in their order.
        share: of all numbers in tensors with rows, those that every rank computes, between 0 and 1.
    """

    ops: list[tuple[str, str]]
    share: float

    def __str__(self) -> str:
        """Such as `Cumsum of model/ranking and TopKV2 of model/mining`."""
        names = list(dict.fromkeys(f"{kind} of {_place(name)}" if _place(name) else kind for kind, name in self.ops))
        more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
        *first, last = names[:_NAMED] + more
        return f"{', '.join(first)} and {last}" if first else last

    @property
    def is_worth_a_line(self) -> bool:
        """Whether it is not too small to speak of."""
        return bool(self.ops) and self.share >= _WORTH_A_LINE

    def line(self, name: str) -> str:
        """What to say of it.

        Args:
            name: of the step, the first words of the line.
        """
        return (
            f"{name} has {self.share:.0%} of its values computed whole by every rank, since no rule says how rows go "
            f"through {self}"
        )


def of(plan: Plan) -> WholePart:
    """The part of a step that is computed whole."""
    whole = every = 0.0
    for part, node in _nodes(plan):
        for tensor in node.op.outputs:
            shape = part.shaped.shape(tensor)
            if shape and None not in shape and part.shaped.rows_axes(tensor):
                size = math.prod(shape) / part.shaped.prime  # type: ignore[arg-type]
                every += size
                whole += size if part.labels[tensor].kind == "R" else 0.0
    return WholePart([(op.type, op.name) for op in plan.computed_whole], whole / every if every else 0.0)


def numbers(plan: Plan, rows: int) -> float:
    """How many numbers every rank computes of a batch; those of loops and branches once.

    Args:
        plan: of a step. rows: those of the batch.
    """
    whole = 0.0
    for part, node in _nodes(plan):
        for tensor in node.op.outputs:
            shape = part.shaped.shape(tensor)
            if shape is not None and None not in shape and part.labels[tensor].kind == "R":
                size = math.prod(shape)  # type: ignore[arg-type]
                whole += size * (rows / part.shaped.prime) ** len(part.shaped.rows_axes(tensor))
    return whole


def has_number(plan: Plan, rows: int) -> bool:
    """Whether a step that was traced for any number of rows takes so many for all of a batch, as one does that draws
    `tf.random.normal([rows, 8])`: every rank computes whole what follows.

    Args:
        plan: of the step. rows: those of each batch.
    """
    drawn = [op.outputs[0] for op in plan.shaped.ops if op.type in draws.TYPES]
    met = [tensor for op in plan.computed_whole for tensor in op.inputs]
    return rows > 1 and any(rows in numbers_of(tensor)[:1] for tensor in [*drawn, *met])


def whole_line(name: str, why: str) -> str:
    """What to say of a step that is computed whole.

    Args:
        name: of the step, the first words of the line. why: the reason, its last words.
    """
    return f"{name} is computed whole by every rank, so more ranks make it no faster: {why}"


def reason(error: Exception) -> str:
    """Why a step could not be rebuilt, from an error that nobody expected: the first line of it."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _nodes(plan: Plan) -> Iterator[tuple[Plan, Node]]:
    for node in plan.nodes:
        yield plan, node
        for inside in node.inside:
            yield from _nodes(inside)


def _place(name: str) -> str:
    """The layer or function that an op belongs to."""
    return name.rpartition("/")[0]
