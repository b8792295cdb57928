"""The table of trials: each type of op that a rule knows, in several settings of its attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from matex_tf.patches.partition.rules.elementwise import LINEAR
from tests.support.partition_rules import Trial

raw = tf.raw_ops
BOTH = ("float64", "float32")
ALL = ("float64", "float32", "float16")

#: Kinds of operands of elementwise ops that are not floats about zero.
_KINDS = {
    "Acosh": "p", "Atanh": "u", "Acos": "u", "Asin": "u", "Betainc": "ppu", "Erfinv": "u", "Igamma": "pp",
    "IgammaGradA": "pp", "Igammac": "pp", "Log": "p", "Lgamma": "p", "Digamma": "p", "Ndtri": "u", "Pow": "pf",
    "Polygamma": "pp", "Rsqrt": "p", "RsqrtGrad": "pf", "Sqrt": "p", "SqrtGrad": "pf", "Zeta": "pp", "Log1p": "u",
    "Complex": "ff", "ComplexAbs": "c", "Conj": "c", "Real": "c", "Imag": "c", "Select": "bff", "SelectV2": "bff",
    "LogicalAnd": "bb", "LogicalNot": "b", "LogicalOr": "bb", "StringLower": "s", "StringUpper": "s",
    "StringStrip": "s",
    "StringToNumber": "s", "StringToHashBucketFast": "s", "StringToHashBucketStrong": "s", "StringLength": "s",
    "StaticRegexReplace": "s", "RegexReplace": "s", "StaticRegexFullMatch": "s", "RegexFullMatch": "s",
    "BitwiseAnd": "kk", "BitwiseOr": "kk", "BitwiseXor": "kk", "Invert": "k", "LeftShift": "kk", "RightShift": "kk",
    "TruncateMod": "pp", "FloorMod": "pp", "Mod": "pp",
}  # fmt: skip
_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "Bucketize": {"boundaries": [0.0, 0.5]},
    "Cast": {"DstT": tf.float32}, "Bitcast": {"type": tf.int64}, "CheckNumerics": {"message": ""},
    "CheckNumericsV2": {"message": ""}, "Complex": {"Tout": tf.complex128},
    "ComplexAbs": {"Tout": tf.float64}, "Real": {"Tout": tf.float64}, "Imag": {"Tout": tf.float64},
    "StringToHashBucketFast": {"num_buckets": 7},
    "StringToHashBucketStrong": {"num_buckets": 7, "key": [1, 2]}, "StaticRegexReplace": {"pattern": "1",
    "rewrite": "x"},
    "StaticRegexFullMatch": {"pattern": "1."},
}  # fmt: skip
#: Elementwise ops that do not broadcast: all operands have one shape.
_SAME = [
    "AddN",
    "ClipByValue",
    "Betainc",
    "IgammaGradA",
    "Select",
    "SigmoidGrad",
    "TanhGrad",
    "SqrtGrad",
    "RsqrtGrad",
    "ReciprocalGrad",
    "InvGrad",
    "ReluGrad",
    "Relu6Grad",
    "EluGrad",
    "SeluGrad",
    "SoftplusGrad",
    "SoftsignGrad",
    "LeakyReluGrad",
    "ApproximateEqual",
    "RegexReplace",
]
#: Their integers, and dtypes for which no kernel is there.
_INTEGERS = [
    "Abs",
    "Add",
    "AddN",
    "AddV2",
    "Equal",
    "FloorDiv",
    "Greater",
    "GreaterEqual",
    "Less",
    "LessEqual",
    "Maximum",
    "Minimum",
    "Mul",
    "Neg",
    "NotEqual",
    "OnesLike",
    "Sign",
    "Square",
    "SquaredDifference",
    "Sub",
    "ZerosLike",
    "SelectV2",
    "Relu",
    "ClipByValue",
    "Cast",
    "AsString",
]


def elementwise(types: list[str]) -> Iterator[Trial]:
    """Trials for ops on each element."""
    for name in types:
        definition = op_def_registry.get(name)
        count = 2 if name == "AddN" else len(definition.input_arg)
        kinds = _KINDS.get(name, "f" * count)
        types_of = _float_types(definition, name)
        yield from _of(name, kinds, types_of)
        if name in _INTEGERS:
            yield from _of(name, "".join("k" if kind == "f" else kind for kind in kinds), ["float64"])


def _float_types(definition: Any, name: str) -> tuple[str, ...]:
    if name in ("Complex", "ComplexAbs", "Conj", "Real", "Imag", "Bitcast"):
        return ("float64",)
    allowed = next((a.allowed_values.list.type for a in definition.attr if a.name == "T"), [])
    names = {tf.as_dtype(one).name for one in allowed} if allowed else {"float64", "float32"}
    return tuple(one for one in ALL if one in names and not (one == "float16" and name in _NO_HALF))


_NO_HALF = ("Betainc", "Zeta", "Polygamma", "Igamma", "Igammac", "IgammaGradA", "NextAfter", "ApproximateEqual",
"Erfinv", "Ndtri",
    "Mod", "TruncateMod", "Rint", "BesselI0", "BesselI0e", "BesselI1", "BesselI1e")  # fmt: skip


def _of(name: str, kinds: str, dtypes: Any) -> Iterator[Trial]:
    function = _caller(name)
    every = [f"{kind} n 3" for kind in kinds]
    dtypes = tuple(dtypes)
    if name == "RegexReplace" or name == "RegexFullMatch":
        every = ["s n 3"]
    elif name == "ClipByValue":
        every = [every[0], kinds[1], kinds[2]]
    yield Trial(name, function, every, "S0", dtypes, () if name in _EVERY_FORM else ("rows",))
    if name == "Bitcast" or not any(kind in "fup" for kind in kinds):
        return
    without = [one.replace(" n", "") for one in every]
    yield Trial(name, function, without, "", dtypes if name in LINEAR else dtypes[:1], ("parts",))
    if name in _SAME or len(every) == 1:
        return
    rest = [f"{kind} 3" for kind in kinds[1:]]
    yield Trial(name, function, [f"{kinds[0]} n 3", *rest], "S0", dtypes[:1], ("rows", "parts"))
    if name in _EVERY_FORM:
        for shapes in (
            "n 3|3",
            "3|n 3",
            "2 n|2 n",
            "n 1|2 n 3",
            "n|n 1",
            "n N|n 1",
            "N n|n 1",
            "n 3|",
            "|n",
            "3 n|3 1",
        ):
            first, second = shapes.split("|")
            if "N" in first and kinds[0] == "b":
                continue
            yield Trial(
                name, function, [f"{kinds[0]} {first}", *[f"{kind} {second}" for kind in kinds[1:]]], "", dtypes[:1]
            )


#: Those that stand for all others: they are tried in every form, with operands of all kinds of shapes.
_EVERY_FORM = ("Mul", "Sub", "RealDiv", "Maximum", "SelectV2", "Select", "Less")


def _caller(name: str) -> Any:
    def call(*values: Any) -> Any:
        names = [arg.name for arg in op_def_registry.get(name).input_arg]
        names = ["condition", "x", "y"] if name == "Select" else names
        if name == "EnsureShape":
            return raw.EnsureShape(input=values[0], shape=[None] * values[0].shape.rank)
        if name == "AddN":
            return raw.AddN(inputs=list(values))
        if name in ("RegexReplace", "RegexFullMatch"):
            values = (*values, "1", *(["x"] if name == "RegexReplace" else []))
        return getattr(raw, name)(**dict(zip(names, values, strict=True)), **_ATTRIBUTES.get(name, {}))

    return call
