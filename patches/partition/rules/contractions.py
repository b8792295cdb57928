"""Products that sum over axes: a sum over rows is a part, whose allreduce is that of gradients."""

from __future__ import annotations

import string
from collections.abc import Sequence

from matex_tf.patches.partition.labels import Label, P, R, S
from matex_tf.patches.partition.rules import Op, Ruling, _size, rule


@rule("MatMul")
def matmul(op: Op) -> Ruling | None:
    """Two matrices."""
    a = "ki" if op.attribute("transpose_a") else "ik"
    b = "jk" if op.attribute("transpose_b") else "kj"
    return contract(op, (a, b), "ij")


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_matmul(op: Op) -> Ruling | None:
    """Matrices, with broadcasting of the axes before them."""
    if any(shape is None for shape in op.shapes):
        return None
    ranks = [len(shape) for shape in op.shapes]  # type: ignore[arg-type]
    more = string.ascii_uppercase[: max(ranks) - 2]
    a = more[len(more) - (ranks[0] - 2) :] + ("ki" if op.attribute("adj_x") else "ik")
    b = more[len(more) - (ranks[1] - 2) :] + ("jk" if op.attribute("adj_y") else "kj")
    return contract(op, (a, b), more + "ij")


@rule("Einsum")
def einsum(op: Op) -> Ruling | None:
    """Any equation without an ellipsis in which an index stands once in each operand."""
    equation = op.attribute("equation")
    equation = (equation.decode() if isinstance(equation, bytes) else equation).replace(" ", "")
    left, _, out = equation.partition("->")
    names = left.split(",")
    if "." in equation or any(len(set(name)) < len(name) for name in (*names, out)):
        return None
    return contract(op, names, out)


@rule("Cross")
def cross(op: Op) -> Ruling | None:
    """Of vectors along the last axis."""
    shape = op.shapes[0]
    if shape is None:
        return None
    letters = string.ascii_lowercase[: len(shape) - 1]
    found = contract(op, (letters + "z", letters + "z"), letters + "z")
    return found if found is not None and found.gives[0].axis < len(shape) - 1 else None


def contract(op: Op, names: Sequence[str], out: str) -> Ruling | None:
    """A product of operands, summed over the axes that the result lacks, as in an einsum.

    Of the axes along which operands hold rows, the one is taken for which least has to travel.

    Args:
        op: a product, linear in each operand.
        names: for each operand a letter for each axis, all different. out: the letters of the result.

    Returns:
        The ruling; None if no axis of rows can be taken, and it is not one part times whole values either.
    """
    if any(shape is None or len(shape) != len(name) for shape, name in zip(op.shapes, names, strict=True)):
        return None
    best: tuple[float, Ruling] | None = None
    for place, label in enumerate(op.labels):
        if label.kind != "S":
            continue
        index = names[place][label.axis]
        wants: list[Label | None] = []
        for name, shape in zip(names, op.shapes, strict=True):
            own = name.find(index)
            if own >= 0 and op.is_rows(S(own, label.blocks), shape):
                wants.append(S(own, label.blocks))
            elif own < 0 or shape[own] == 1:  # type: ignore[index]
                wants.append(R)
            else:
                break
        if len(wants) < len(names):
            continue
        gives = S(out.find(index), label.blocks) if index in out else P
        cost = op.moved(wants) + (_size(op.out_shapes[0]) if gives == P else 0)
        if best is None or cost < best[0]:
            best = cost, Ruling(wants, [gives])
    return best[1] if best else _linear(op)


def _linear(op: Op) -> Ruling | None:
    """A product is linear in each operand."""
    parts = [place for place, label in enumerate(op.labels) if label.is_sum]
    if len(parts) != 1 or _size(op.out_shapes[0]) > op.size(parts[0]):
        return None
    return Ruling([None if place == parts[0] else R for place in range(len(op.labels))], [P])
