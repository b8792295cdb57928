"""What of a step every rank computes whole, for a line: the ops that no rule knew, and how much follows from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from matex_tf.patches.partition.analysis import Node, Plan

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
