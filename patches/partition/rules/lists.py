"""Lists of tensors, in which loops keep what they read and give: `TensorArray` and gradients of loops.

The elements of a list have one label. Where the shape of an element counts rows the list holds rows.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from matex_tf.patches.partition.labels import L, Label, P, R, S
from matex_tf.patches.partition.rules import Op, Ruling
from matex_tf.patches.partition.shapes.affine import Affine


def _element(op: Op, place: int) -> tuple[Label | None, Any]:
    """The label that elements have by their shape, and what makes the shape of a rank's element."""
    known = op.known(place)
    if known is None:
        return None, lambda builder, value: value
    dims = known.at(op.shaped.prime)
    axes = [axis for axis, size in enumerate(dims.ravel().tolist()) if op.counts(size)] if dims.ndim else []
    if not axes:
        return None, lambda builder, value: value
    label = S(axes[0])
    return label, lambda builder, value: _cast(builder.local_of(known, axes[0]), value)


def _cast(shape: Any, like: Any) -> Any:
    return tf.cast(shape, like.dtype)


def decide(op: Op) -> Ruling:
    """The ruling for an op on lists."""
    return _RULES.get(op.type, _other)(op)


def _made(op: Op) -> Ruling:
    label, local = _element(op, 0)

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        return builder.same(made, [local(builder, values[0]), *values[1:]])

    return Ruling([R, R], [L(label)], build)


def _from_tensor(op: Op) -> Ruling:
    label, local = _element(op, 1)
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
        shape = local(builder, values[1])
        if inside.kind == "S" and label is None:
            shape = tf.fill(tf.shape(values[1]), tf.cast(-1, values[1].dtype))
        return builder.same(made, [values[0], shape])

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
    label, local = _element(op, place)
    inside = op.labels[0].inside or label or R

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        given = list(values)
        given[place] = local(builder, values[place])
        if inside.kind == "S" and label is None:
            given[place] = tf.constant(-1, values[place].dtype)
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
    """What passes lists on: their sum, zeros like them, the same."""
    lists = [label for label in op.labels if label.kind == "L"]
    inside = next((label for label in lists if label.inside is not None), lists[0] if lists else L(None))
    wants = [None if label.kind == "L" else R for label in op.labels]
    gives = [inside if tensor.dtype == tf.variant else R for tensor in op.op.outputs]
    return Ruling(wants, gives)


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
