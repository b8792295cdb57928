"""Ops that compute each element by itself, with broadcasting; and what is linear in a part."""

from __future__ import annotations

from matex_tf.patches.partition.labels import Label, P, R, S
from matex_tf.patches.partition.rules import Op, Ruling, rule

ELEMENTWISE = [
    "Abs", "Acos", "Acosh", "Add", "AddN", "AddV2", "ApproximateEqual", "Asin", "Asinh", "Atan", "Atan2", "Atanh",
    "Betainc", "BesselI0", "BesselI0e", "BesselI1", "BesselI1e", "Bitcast", "BitwiseAnd", "BitwiseOr",
    "BitwiseXor", "Cast", "Ceil", "ClipByValue", "Complex", "ComplexAbs", "Conj", "Cos", "Cosh", "Digamma", "Div",
    "DivNoNan", "Elu", "EluGrad", "Equal", "Erf", "Erfc", "Erfinv", "Exp", "Expm1", "Floor", "FloorDiv",
    "FloorMod", "Greater", "GreaterEqual", "Igamma", "IgammaGradA", "Igammac", "Imag", "Inv", "InvGrad", "Invert",
    "IsFinite", "IsInf", "IsNan", "LeakyRelu", "LeakyReluGrad", "LeftShift", "Less", "LessEqual", "Lgamma", "Log",
    "Log1p", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mod", "Mul", "MulNoNan", "Ndtri",
    "Neg", "NextAfter", "NotEqual", "OnesLike", "Polygamma", "Pow", "Real", "RealDiv", "Reciprocal",
    "ReciprocalGrad", "Relu", "Relu6", "Relu6Grad", "ReluGrad", "RightShift", "Rint", "Round", "Rsqrt",
    "RsqrtGrad", "Select", "SelectV2", "Selu", "SeluGrad", "Sigmoid", "SigmoidGrad", "Sign", "Sin", "Sinh",
    "Softplus", "SoftplusGrad", "Softsign", "SoftsignGrad", "Sqrt", "SqrtGrad", "Square", "SquaredDifference",
    "Sub", "Tan", "Tanh", "TanhGrad", "TruncateDiv", "TruncateMod", "Xdivy", "Xlog1py", "Xlogy", "ZerosLike",
    "Zeta", "StringLower", "StringUpper", "StringStrip", "AsString", "StringToNumber", "StringToHashBucketFast",
    "StringToHashBucketStrong", "StaticRegexReplace", "RegexReplace", "StaticRegexFullMatch", "RegexFullMatch",
    "StringLength", "Bucketize", "EnsureShape",
]  # fmt: skip
#: Ops that are linear in these inputs, the other inputs being whole.
LINEAR = {
    "Neg": (0,), "Mul": (0, 1), "MulNoNan": (0,), "RealDiv": (0,), "Div": (0,), "DivNoNan": (0,), "Conj": (0,),
    "Real": (0,), "Imag": (0,), "Xdivy": (0,), "RsqrtGrad": (1,), "SqrtGrad": (1,), "TanhGrad": (1,),
    "SigmoidGrad": (1,), "ReciprocalGrad": (1,), "InvGrad": (1,), "ReluGrad": (0,), "Relu6Grad": (0,), "EluGrad": (0,),
    "SeluGrad": (0,), "LeakyReluGrad": (0,), "SoftplusGrad": (0,), "SoftsignGrad": (0,),
}  # fmt: skip
#: Sums, of which every input may be a part.
SUMS = ("Add", "AddV2", "Sub", "AddN")


@rule(*ELEMENTWISE)
def broadcast(op: Op) -> Ruling | None:
    """If an input holds rows, all inputs that have the axis of these hold the same rows."""
    out = op.out_shapes[0]
    if out is None or any(shape is None for shape in op.shapes):
        return None
    if op.type in ("ZerosLike", "OnesLike") and op.labels[0].kind == "P":
        return Ruling([None], [R])  # its value does not matter
    best: tuple[float, Ruling] | None = None
    for place, label in enumerate(op.labels):
        if label.kind != "S":
            continue
        axis = label.axis + len(out) - len(op.shapes[place])  # type: ignore[arg-type]
        wants = _aligned(op, axis, label.blocks)
        if wants is None:
            continue
        cost = op.moved(wants)
        if best is None or cost < best[0]:
            best = cost, Ruling(wants, [S(axis, label.blocks)])
    return best[1] if best else _linear(op)


def _aligned(op: Op, axis: int, blocks: int) -> list[Label | None] | None:
    """The labels of inputs if the output holds rows along an axis; None if an input does not go with that."""
    out = op.out_shapes[0]
    size = out[axis]  # type: ignore[index]
    if size is not None and not op.is_rows(S(axis, blocks), out):
        return None
    wants: list[Label | None] = []
    for place, shape in enumerate(op.shapes):
        own = axis - (len(out) - len(shape))  # type: ignore[arg-type]
        if op.type == "Select" and len(shape) < len(out):  # type: ignore[arg-type]
            own = axis  # its condition may be a vector, along the first axis
            if axis > 0 or not shape:
                wants.append(R)
                continue
        if own < 0 or shape[own] == 1:  # type: ignore[index]
            wants.append(R)
        elif shape[own] == size and op.may_have(place, S(own, blocks)):  # type: ignore[index]
            wants.append(S(own, blocks))
        else:
            return None
    return wants


def _linear(op: Op) -> Ruling | None:
    """A part stays one under what is linear in it, if the result is not larger."""
    parts = [place for place, label in enumerate(op.labels) if label.is_sum]
    if not parts or op.op.outputs[0].dtype.is_integer or op.op.outputs[0].dtype.is_bool:
        return None
    if op.type == "Cast":
        before, after = op.op.inputs[0].dtype, op.op.outputs[0].dtype
        # A sum of 16 bits may overflow where the ranks' parts do not: it is made in 16 bits, as on one rank.
        widens = before.is_floating and after.is_floating and after.size >= before.size >= 4
        return Ruling([None], [P]) if widens else None
    if _elements(op.out_shapes[0]) > sum(_elements(op.shapes[place]) for place in parts):
        return None
    if op.type in SUMS:  # with a whole value only where it grows in a loop: else what is added up is smaller
        grows = len(parts) == len(op.labels) or op.shaped.is_body
        return Ruling([P] * len(op.labels), [P]) if grows else None
    if op.type in LINEAR and len(parts) == 1 and parts[0] in LINEAR[op.type]:
        return Ruling([None if place == parts[0] else R for place in range(len(op.labels))], [P])
    return None


def _elements(shape: list[int | None] | None) -> float:
    if shape is None or None in shape:
        return float("inf")
    size = 1.0
    for one in shape:
        size *= one or 0
    return size
