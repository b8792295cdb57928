"""Lists of tensors, in which loops keep what they read and give: `TensorArray` and gradients of loops.

The elements of a list have one label. Where the shape of an element counts rows the list holds rows.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.labels import CannotPartition, L, Label, P, R, S
from matex_tf.patches.partition.rules import Op, Ruling
from matex_tf.patches.partition.shapes.affine import Affine


def _by_shape(op: Op, place: int) -> Label | None:
    """The label that elements have by the shape that an input gives of them; None if that does not count rows."""
    return next((S(axis) for axis, size in enumerate(_dimensions(op, place)) if op.counts(size)), None)


def _dimensions(op: Op, place: int) -> list[int]:
    known = op.known(place)
    return known.at(op.shaped.prime).ravel().tolist() if known is not None else []


def _local(op: Op, place: int, inside: Label, builder: Any, value: Any) -> Any:
    """The shape of a rank's elements of a label, in the place of that which an input gives."""
    if inside.kind != "S":
        return value
    if not any(op.counts(size) for size in _dimensions(op, place)[inside.axis : inside.axis + 1]):
        return tf.fill(tf.shape(value), tf.cast(-1, value.dtype))
    return tf.cast(builder.local_of(op.known(place), inside.axis), value.dtype)


def decide(op: Op) -> Ruling:
    """The ruling for an op on lists."""
    return _RULES.get(op.type, _other)(op)


def _made(op: Op) -> Ruling:
    label = _by_shape(op, 0)

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        return builder.same(made, [_local(op, 0, label or R, builder, values[0]), *values[1:]])

    return Ruling([R, R], [L(label)], build)


def _from_tensor(op: Op) -> Ruling:
    label = _by_shape(op, 1)
    has = op.labels[0]
    want: Label | None
    if has.kind == "S" and has.axis > 0:
        want, inside = None, S(has.axis - 1, has.blocks)
    elif label is not None and op.is_rows(S(label.axis + 1), op.shapes[0]):
        want, inside = S(label.axis + 1), label
    elif has.is_sum:
        want, inside = None, P
    else:
        want, inside = R, R

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        return builder.same(made, [values[0], _local(op, 1, inside, builder, values[1])])

    return Ruling([want, R], [L(inside)], build)


def _put(op: Op) -> Ruling:
    place = 2 if op.type == "TensorListSetItem" else 1
    inside = op.labels[0].inside or op.labels[place]
    if inside.kind == "F" or inside.kind == "P" and not inside.is_sum:
        inside = R
    wants: list[Label | None] = [None, *[R] * (len(op.labels) - 1)]
    wants[place] = inside
    return Ruling(wants, [L(inside)])


def _get(op: Op) -> Ruling:
    place = {"TensorListGetItem": 2, "TensorListStack": 1, "TensorListPopBack": 1}[op.type]
    inside = op.labels[0].inside or _by_shape(op, place) or R

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        given = list(values)
        given[place] = _local(op, place, inside, builder, values[place])
        if op.type == "TensorListStack" and op.counts(op.attribute("num_elements")):
            dtype = made.outputs[0].dtype
            return [tf.raw_ops.TensorListStack(input_handle=given[0], element_shape=given[1], element_dtype=dtype)]
        return builder.same(made, given)

    wants: list[Label | None] = [None, *[R] * (len(op.labels) - 1)]
    if op.type == "TensorListPopBack":
        return Ruling(wants, [L(inside), inside], build)
    if op.type == "TensorListStack":
        inside = S(inside.axis + 1, inside.blocks) if inside.kind == "S" else inside
    return Ruling(wants, [inside], build)


def _shape(op: Op) -> Ruling:
    return Ruling([None], [R])


def _other(op: Op) -> Ruling:
    """What passes lists on: their sum, zeros like them, the same. Lists stay as they are, so those that are added up
    have elements of one label; otherwise the step is not rebuilt."""
    lists = [label for label in op.labels if label.kind == "L"]
    inside = next((label for label in lists if label.inside is not None), lists[0] if lists else L(None))
    wants = [None if label.kind == "L" else R for label in op.labels]
    gives = [inside if tensor.dtype == tf.variant else R for tensor in op.op.outputs]
    if len({label.inside for label in lists if label.inside is not None}) > 1:
        return Ruling(wants, gives, _refuse)
    return Ruling(wants, gives)


def _refuse(builder: Any, made: Any, values: list[Any]) -> list[Any]:
    raise CannotPartition(f"{made.name} adds up lists of a rank's rows and of whole elements")


_RULES: dict[str, Any] = {
    "TensorListReserve": _made,
    "EmptyTensorList": _made,
    "TensorListFromTensor": _from_tensor,
    "TensorListSetItem": _put,
    "TensorListPushBack": _put,
    "TensorListGetItem": _get,
    "TensorListStack": _get,
    "TensorListPopBack": _get,
    "TensorListElementShape": _shape,
    "TensorListLength": _shape,
}

__all__ = ["Affine", "decide"]
