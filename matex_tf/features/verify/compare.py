"""How far two trainings are apart, and since when."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from matex_tf.features.verify.record import BATCH, EPOCH, SLOTS, TEST, WEIGHTS, Moment

KINDS = (BATCH, EPOCH, TEST, WEIGHTS, SLOTS)
#: Relative differences up to this come of sums that are taken in another order.
ROUNDING = 1e-5
#: How much larger a difference may be than what rounding makes of one rank, and how many steps earlier.
_MARGIN, _EARLIER = 4.0, 4
_SMALLEST = 1e-4  # an array of smaller entries is held against this


@dataclass
class Found:
    """What was found of one kind of values.

    Attributes:
        compared: how many values.
        largest: the largest relative difference: of an array, to its largest entry.
        where: the name of the value that has it; step: after how many training steps.
        first: after how many training steps a difference was larger than rounding for the first time; None for never.
        by_step: the largest of each step.
    """

    compared: int = 0
    largest: float = 0.0
    where: str = ""
    step: int = 0
    first: int | None = None
    by_step: dict[int, float] = field(default_factory=dict)


@dataclass
class Comparison:
    """What was found of all kinds, and what one of the two has and the other has not.

    Attributes:
        left_out: what differs by as much as rounding makes it differ on one rank.
    """

    found: dict[str, Found]
    unequal: list[str]
    left_out: set[str] = field(default_factory=set)

    def first_log(self) -> Found | None:
        """Of logs, or where there are none of weights, what is furthest apart; None where nothing was compared."""
        for kinds in ((BATCH, EPOCH, TEST), (WEIGHTS,)):
            found = [self.found[kind] for kind in kinds if self.found[kind].compared]
            if found:
                return max(found, key=lambda one: one.largest)
        return None

    def within(self, tolerance: float) -> bool:
        """Whether both are the same up to a relative difference, and something was compared."""
        compared = any(one.compared for one in self.found.values())
        return compared and not self.unequal and all(one.largest <= tolerance for one in self.found.values())


class Rounding:
    """What other last digits of the weights make of a training on one rank, by value and step.

    The gradient of a bias before BatchNormalization, which takes it out, is rounding alone, and Adam makes steps of it
    that are as large as any. Where the input of a ReLU is nearly 0, the last digit decides whether a gradient passes.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], dict[int, float]] = {}

    def add(self, expected: Iterable[Moment], nudged: Iterable[Moment]) -> None:
        """Take note of how far apart two trainings on one rank are, which differ by rounding.

        Args:
            expected: what the one has computed.
            nudged: what one with other last digits of its first weights has.
        """
        for one, other in zip(expected, nudged, strict=False):
            for name in one.values.keys() & other.values.keys():
                if one.values[name].shape == other.values[name].shape:
                    steps = self._found.setdefault((one.kind, name), {})
                    apart = difference(one.values[name], other.values[name])
                    steps[one.step] = max(steps.get(one.step, 0.0), apart)

    def most(self, kind: str, name: str, step: int) -> float:
        """The largest relative difference that is taken for rounding, of one value after one step.

        Args:
            kind: which of `KINDS` the value is.
            name: of the value.
            step: how many steps were taken; what rounding does a few steps later counts too.
        """
        steps = self._found.get((kind, name), {})
        return _MARGIN * max((apart for at, apart in steps.items() if at <= step + _EARLIER), default=0.0)


def compare(
    expected: Iterable[Moment], got: Iterable[Moment], tolerance: float = 0.0, rounding: Rounding | None = None
) -> Comparison:
    """Hold a training beside the one that it should be like.

    Args:
        expected: that of one rank.
        got: the other.
        tolerance: a difference up to this is none.
        rounding: what rounding makes of the training; differences up to that are left out.
    """
    result = Comparison({kind: Found() for kind in KINDS}, [])
    for one, other in itertools.zip_longest(expected, got):
        if one is None or other is None:
            there, which = (one, "one rank") if other is None else (other, "several ranks")
            result.unequal.append(f"{there.kind} after step {there.step}: on {which} alone")
            break
        if (one.kind, one.step) != (other.kind, other.step):
            result.unequal.append(
                f"one rank has {one.kind} after step {one.step} where several have {other.kind} after step {other.step}"
            )
            break
        _compare(one, other, result, tolerance, rounding or Rounding())
    return result


def _compare(one: Moment, other: Moment, result: Comparison, tolerance: float, rounding: Rounding) -> None:
    found = result.found[one.kind]
    alone = sorted(set(one.values) ^ set(other.values))
    if alone:
        result.unequal.append(f"{one.kind} after step {one.step}: {', '.join(alone[:4])} not in both")
    for name in [name for name in one.values if name in other.values]:
        a, b = one.values[name], other.values[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            result.unequal.append(f"{name} after step {one.step}: {a.dtype} {a.shape}, and {b.dtype} {b.shape}")
            continue
        apart = difference(a, b)
        if tolerance < apart <= rounding.most(one.kind, name, one.step):
            result.left_out.add(name)
            continue
        found.compared += a.size
        found.by_step[one.step] = max(found.by_step.get(one.step, 0.0), apart)
        if apart > ROUNDING and found.first is None:
            found.first = one.step
        if apart > found.largest or not found.where:
            found.largest, found.where, found.step = max(apart, found.largest), name, one.step


def difference(expected: np.ndarray, got: np.ndarray) -> float:
    """The largest difference of two arrays, relative to the largest entry; infinite where only one is not a number.

    Entries that are all below 1e-4 are held against that: 0 on one rank may be 1e-12 on several. Of what is no number
    (text, objects) nothing but equality is looked at: 0 or infinite.

    Args:
        expected: of one rank; the largest entry is its.
        got: of the same shape.
    """
    if expected.dtype.kind not in "fciub" or not expected.size:
        return 0.0 if np.array_equal(expected, got) else float("inf")
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = expected.astype(wide).reshape(-1), got.astype(wide).reshape(-1)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    apart = np.abs(a[~same] - b[~same]).max()
    scale = np.abs(a[np.isfinite(a)]).max(initial=_SMALLEST)
    return float(apart / scale) if np.isfinite(apart) else float("inf")
