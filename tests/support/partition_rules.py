"""Trials of the partitioner's rules: an op on operands that ranks hold in every way, against the op on whole values.

A trial names its operands by strings: a kind and the sizes of its axes, "f n 3". An axis n has one element for each row
of the batch, an axis N counts the rows too and is whole on each rank. Kinds: f floats about zero, u floats between
0 and 1, p floats above 1, i5 integers below 5, k integers from 1 to 5, b booleans, c complex numbers, s strings of
digits.

Each trial is run with its rows as they come, with two elements for each row, with two blocks of rows, with whole values
in the place of rows, and with sums over the rows (parts) in the place of what has no rows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.patches.partition.labels import P, R, S, part
from tests.support.partition import Ranks, cut

RANKS = 3
BATCHES = (2, 7, 11)
FORMS = ("rows", "wide", "blocks", "mixed", "first", "others", "parts")
TOLERANCE = {"float64": 1e-6, "complex128": 1e-6, "float32": 2e-4, "complex64": 2e-4, "float16": 3e-2}


@dataclasses.dataclass(frozen=True)
class Trial:
    """An op and its operands.

    Attributes:
        type: of the op.
        function: from the operands to the result of the op.
        operands: see the module.
        gives: the label of the first output where rows come as they are; "" where the rule does not hold; "whole" where
            what comes of rows is whole without an exchange.
        dtypes: those that stand for floats.
        forms: the ways in which it is run; none: all.
    """

    type: str
    function: Callable[..., Any]
    operands: Sequence[str]
    gives: str
    dtypes: Sequence[str] = ("float64", "float32")
    forms: Sequence[str] = ()


@dataclasses.dataclass
class Operand:
    """One operand of a run of a trial: what is taken from the batch, and what makes the operand of it."""

    spec: Any
    draw: Callable[[Any, int], np.ndarray]
    make: Callable[[Any], Any]


@dataclasses.dataclass
class Run:
    """A trial in one form and dtype."""

    trial: Trial
    form: str
    dtype: str
    operands: list[Operand]

    def __str__(self) -> str:
        return f"{self.trial.type} of {', '.join(self.trial.operands)} [{self.form}, {self.dtype}]"


def runs(trial: Trial) -> Iterator[Run]:
    """The trial in all of its forms."""
    has = [" n" in operand for operand in trial.operands]
    floats = [not rows and operand[0] in "fup" for rows, operand in zip(has, trial.operands, strict=True)]
    for dtype, form in itertools.product(trial.dtypes, trial.forms or FORMS):
        if dtype != trial.dtypes[0] and form not in ("rows", "parts"):
            continue
        ways = [form if rows else "constant" for rows in has]
        if form == "parts":
            if not any(floats):
                continue
            for place in [place for place, one in enumerate(floats) if one and sum(floats) > 1]:
                ways = ["sum" if i == place else "rows" if rows else "constant" for i, rows in enumerate(has)]
                yield Run(trial, f"parts {place}", dtype, _operands(trial, ways, dtype))
            ways = ["sum" if one else "rows" if rows else "constant" for one, rows in zip(floats, has, strict=True)]
        elif form in ("first", "others", "mixed"):
            if sum(has) < 2:
                continue
            first = has.index(True)
            one, other = {"first": ("rows", "whole"), "others": ("whole", "rows"), "mixed": ("wide", "blocks")}[form]
            ways = [one if i == first else other if rows else "constant" for i, rows in enumerate(has)]
        elif not any(has):
            continue
        yield Run(trial, form, dtype, _operands(trial, ways, dtype))


def _operands(trial: Trial, ways: Sequence[str], dtype: str) -> list[Operand]:
    return [operand(text, way, dtype) for text, way in zip(trial.operands, ways, strict=True)]


def operand(text: str, way: str, dtype: str) -> Operand:
    """An operand that is held in a way: "rows", "wide", "blocks", "whole", "sum" or "constant"."""
    kind, *axes = text.split()
    of = _dtype(kind, dtype)
    if way == "constant":
        value = _draw(kind, of, [int(size) for size in axes], np.random.RandomState(len(text)))
        return Operand(None, lambda generator, rows: value, lambda _: tf.constant(value, of))
    count = 2 if way in ("wide", "blocks") else 1
    square = "N" in axes
    place = axes.index("n") if "n" in axes else 0
    shape = [None, count, *(int(axis) for axis in axes if axis not in "nN"), *([3] if square else [])]

    def draw(generator: Any, rows: int) -> np.ndarray:
        return _draw(kind, of, [rows if size is None else size for size in shape], generator)

    def make(given: Any) -> Any:
        if way == "sum":
            return tf.reduce_sum(given, [0, 1])
        if way == "whole":
            given = _whole(given)
        if way == "blocks":
            given = tf.concat([given[:, 0], given[:, 1]], 0)
        else:
            given = tf.reshape(given, tf.concat([[-1], tf.shape(given)[2:]], 0))
        if square:
            given = tf.matmul(given, given, transpose_b=True)
        rank = len(axes)
        order = [*range(1, place + 1), 0, *range(place + 1, rank)]
        return given if place == 0 else tf.transpose(given, order)

    return Operand(tf.TensorSpec([None, *shape[1:]], of), draw, make)


def _whole(tensor: Any) -> Any:
    """The same on each rank, and whole: no rule knows a reversal along the rows."""
    return tf.reverse(tensor, [0])


def _dtype(kind: str, dtype: str) -> Any:
    if kind[0] in "fup":
        return tf.as_dtype(dtype)
    if kind[0] == "c":
        return {"float64": tf.complex128, "float32": tf.complex64}[dtype]
    return {"i": tf.int32, "k": tf.int32, "j": tf.int64, "b": tf.bool, "s": tf.string}[kind[0]]


def _draw(kind: str, dtype: Any, shape: Sequence[int], generator: Any) -> np.ndarray:
    if kind[0] in "ij":
        return generator.randint(0, int(kind[1:] or 5), shape).astype(dtype.as_numpy_dtype)
    if kind == "k":
        return generator.randint(1, 6, shape).astype("int32")
    if kind == "b":
        return generator.rand(*shape) < 0.5
    if kind == "s":
        return np.vectorize(lambda one: str(one).encode(), otypes=[object])(generator.randint(0, 99, shape))
    low, high = {"f": (-2, 2), "u": (0.05, 0.95), "p": (1.1, 3), "c": (-2, 2)}[kind]
    drawn = generator.uniform(low, high, shape)
    if kind == "c":
        drawn = drawn + 1j * generator.uniform(low, high, shape)
    return np.asarray(drawn, dtype.as_numpy_dtype)


class Traced:
    """Runs in one function."""

    def __init__(self, some: Sequence[Run]):
        self.runs = some
        self.places: list[list[int | None]] = []
        self.specs: list[Any] = []
        self.draws: list[Any] = []
        for run in some:
            places: list[int | None] = []
            for one in run.operands:
                places.append(None if one.spec is None else len(self.specs))
                if one.spec is not None:
                    self.specs.append(one.spec)
                    self.draws.append(one.draw)
            self.places.append(places)
        self.sizes: list[int] = []

    def function(self, *given: Any) -> list[Any]:
        outputs: list[Any] = []
        self.sizes = []
        for number, (run, places) in enumerate(zip(self.runs, self.places, strict=True)):
            values = [
                one.make(None if place is None else given[place])
                for one, place in zip(run.operands, places, strict=True)
            ]
            with tf.name_scope(f"trial{number}"):
                results = tf.nest.flatten(run.trial.function(*values))
            outputs += results
            self.sizes.append(len(results))
        return outputs

    def trace(self, _: int) -> Any:
        return tf.function(self.function, autograph=False).get_concrete_function(*self.specs)


def failures(some: Sequence[Run], seed: int = 0) -> list[str]:
    """What is wrong with these runs, a line for each; those that cannot be built are found one by one."""
    try:
        return _failures(some, seed)
    except Exception as error:
        if len(some) == 1:
            return [f"{some[0]}: {type(error).__name__}: {str(error)[:500]}"]
        half = len(some) // 2
        return failures(some[:half], seed) + failures(some[half:], seed)


def _failures(some: Sequence[Run], seed: int) -> list[str]:
    traced = Traced(some)
    ranks = Ranks(RANKS, traced.trace, [True] * len(traced.specs))
    found = _labels(traced, ranks.plan)
    generator = np.random.RandomState(seed)
    for rows in BATCHES:
        batch = [
            tf.constant(draw(generator, rows), spec.dtype)
            for draw, spec in zip(traced.draws, traced.specs, strict=True)
        ]
        wanted = [tensor.numpy() for tensor in tf.nest.flatten(ranks.traced[0](*batch))]
        for rank, got in enumerate(ranks(batch, cut(rows, RANKS, generator))):
            owners = [run for run, size in zip(some, traced.sizes, strict=True) for _ in range(size)]
            found += [
                f"{run}: {rows} rows, rank {rank}: {wrong}"
                for run, one, other in zip(owners, got, wanted, strict=True)
                if (wrong := difference(one, other))
            ]
    return found


def difference(one: np.ndarray, other: np.ndarray) -> str:
    """What differs, in words; "" if nothing does."""
    if one.shape != other.shape:
        return f"shape {one.shape} for {other.shape}"
    if one.dtype.kind not in "fc":
        return "" if (one == other).all() else f"{(one != other).sum()} of {one.size} elements differ"
    limit = TOLERANCE[str(one.dtype)] * max(
        1.0, float(np.nanmax(np.abs(np.where(np.isfinite(other), other, 0)), initial=0))
    )
    if np.allclose(one, other, 0, limit, equal_nan=True):
        return ""
    return f"differs by {np.nanmax(np.abs(one - other)):.1e}"


def _labels(traced: Traced, plan: Any) -> list[str]:
    """Runs in which the rule was meant to hold and did not."""
    nodes: dict[str, list[Any]] = {}
    for node in plan.nodes:
        nodes.setdefault(node.op.name.partition("/")[0], []).append(node)
    found = []
    for number, run in enumerate(traced.runs):
        own = [node for node in nodes.get(f"trial{number}", ()) if node.op.type == run.trial.type]
        if len(own) != 1:
            found.append(f"{run}: {len(own)} ops of this type are in the step")
        elif run.form == "rows" and run.trial.gives and not _has(own[0], run.trial.gives):
            found.append(f"{run}: gives {list(own[0].ruling.gives)}, not {run.trial.gives}")
    return found


def _has(node: Any, gives: str) -> bool:
    labels = {
        "S0": S(0),
        "S1": S(1),
        "S2": S(2),
        "S3": S(3),
        "P": P,
        **{f"P:{one}": part(one) for one in ("max", "min", "prod", "all", "any")},
    }
    if gives == "R":
        return node.known and node.ruling.gives == []
    if gives == "whole":  # of rows, without an exchange
        return bool({*node.ruling.gives} == {R} and node.ruling.wants[0].kind == "S")
    return bool(node.ruling.gives[0] == labels[gives])
