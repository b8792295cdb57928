"""A rule for each op: which labels it wants its inputs to have, and which its outputs have then.

A rule is a function of an `Op` that returns a `Ruling`, or None if it does not know: the op then gets whole values and
is computed by every rank, as on one rank. Rules are registered by the type of the op, `@rule("MatMul")`; the last one
registered that knows an op decides. `tests/unit/test_partition_rules.py` tries each on random inputs cut at random
rows.

It may import its own package alone. Start reading in elementwise.py.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.patches.partition.labels import Label, R, S
from matex_tf.patches.partition.shapes.affine import Affine
from matex_tf.patches.partition.shapes.shaped import Shaped

MODULES = (
    "elementwise", "contractions", "reductions", "layout", "slices", "rowwise", "normalization", "indices", "draws",
    "state", "shards", "tables",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Ruling:
    """What a rule says of an op.

    Attributes:
        wants: the label that each input is given with; None: the one that it has.
        gives: the label of each output.
        build: from the builder, the op and the values of its inputs to those of its outputs; None: the same op.
        whole: the same for the whole values, where whole inputs give rows; None: the same op.
        meets: whether `build` meets the other ranks, those without rows too.
    """

    wants: Sequence[Label | None]
    gives: Sequence[Label]
    build: Callable[..., list[Any]] | None = None
    whole: Callable[..., list[Any]] | None = None
    meets: bool = False


class Op:
    """An op of the step as rules see it.

    Attributes:
        type: of TensorFlow, such as "MatMul".
        labels: of the inputs.
        shapes, out_shapes: of inputs and outputs for the prime number of rows; None if the rank is not known.
    """

    def __init__(self, op: Any, labels: Sequence[Label], shaped: Shaped):
        """Args: op: of the graph `shaped`. labels: of its inputs, in their order."""
        self.op, self.shaped = op, shaped
        self.type: str = op.type
        self.labels = labels
        self.shapes = [shaped.shape(tensor) for tensor in op.inputs]
        self.out_shapes = [shaped.shape(tensor) for tensor in op.outputs]

    def attribute(self, name: str) -> Any:
        """An attribute of the op."""
        return self.op.get_attr(name)

    def known(self, place: int) -> Affine | None:
        """The integers of an input that follow from shapes."""
        return self.shaped.known.get(self.op.inputs[place])

    def constant(self, place: int) -> np.ndarray | None:
        """The integers of an input, if they are known and do not depend on the rows."""
        value = self.known(place)
        return value.constant if value is not None and value.is_constant else None

    def counts(self, size: int | None) -> bool:
        """Whether a dimension counts rows."""
        return self.shaped.counts(size)

    def per_row(self, size: int, blocks: int = 1) -> int | None:
        """Elements of a row in a dimension; see `Shaped.per_row`."""
        return self.shaped.per_row(size, blocks)

    def is_rows(self, label: Label, shape: Sequence[int | None] | None) -> bool:
        """Whether a value of a shape can have a label S; see `Shaped.is_rows`."""
        return self.shaped.is_rows(label, shape)

    def may_have(self, place: int, label: Label) -> bool:
        """Whether the input at `place` has a `label` S, be its size known or not, or can have it."""
        return self.labels[place] == label or self.is_rows(label, self.shapes[place])

    def size(self, place: int) -> float:
        """Elements of an input, for costs."""
        return _size(self.shapes[place])

    def moved(self, wants: Sequence[Label | None]) -> float:
        """Elements that travel if the inputs are wanted so."""
        return sum(
            self.size(place)
            for place, (has, want) in enumerate(zip(self.labels, wants, strict=True))
            if want is not None and want != has and has.kind in "SP"
        )


def _size(shape: Sequence[int | None] | None) -> float:
    return math.inf if shape is None or None in shape else float(math.prod(shape))  # type: ignore[arg-type]


Rule = Callable[[Op], "Ruling | None"]
RULES: dict[str, list[Rule]] = {}


def rule(*types: str) -> Callable[[Rule], Rule]:
    """Register a rule for ops of these types."""

    def register(function: Rule) -> Rule:
        for name in types:
            RULES.setdefault(name, []).append(function)
        return function

    return register


def decide(op: Op) -> Ruling | None:
    """What the rules say of an op; None if none knows it."""
    load()
    for function in reversed(RULES.get(op.type, ())):
        ruling = function(op)
        if ruling is not None:
            return ruling
    return None


@functools.cache
def load() -> None:
    """Import the modules of rules, once."""
    for name in MODULES:
        importlib.import_module(f"matex_tf.patches.partition.rules.{name}")


def whole(op: Op) -> Ruling:
    """Every rank computes the whole, as one rank would."""
    return Ruling([R] * len(op.labels), [R] * len(op.out_shapes))


def same_rows(op: Op, first: Label, data: Sequence[int], given: Sequence[Label]) -> Ruling:
    """A ruling in which some inputs have one label and the other ones are whole.

    Args:
        op: which is decided on. first: the label. data: the places of those inputs. given: the label of each output.
    """
    wants = [first if place in data else R for place in range(len(op.labels))]
    return Ruling(wants, given)


def rows_of(op: Op, data: Sequence[int]) -> Label | None:
    """The label S of the first input of `op` that has one, among those at the places `data`; None if none has."""
    return next((op.labels[place] for place in data if op.labels[place].kind == "S"), None)


__all__ = ["RULES", "Op", "R", "Rule", "Ruling", "S", "decide", "load", "rows_of", "rule", "same_rows", "whole"]
