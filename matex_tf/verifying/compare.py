"""How far two trainings are apart, and since when."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from matex_tf.verifying.record import BATCH, EPOCH, SLOTS, TEST, WEIGHTS, Moment

KINDS = (BATCH, EPOCH, TEST, WEIGHTS, SLOTS)
#: Relative differences up to this come of sums that are taken in another order.
ROUNDING = 1e-5
#: Slots that hold mean gradients (1) and mean squares of gradients (2): their names in Keras 3, in Keras 2 with its new
#: optimizers ("Adam/m/dense/bias:0") and with its legacy ones ("Adam/dense/bias/m:0").
_MOMENTS = {"momentum": 1, "m": 1, "velocity": 2, "v": 2, "rms": 2}
_NOTHING = 1e-4
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
    """What was found of all kinds, and what one of the two has and the other has not."""

    found: dict[str, Found]
    unequal: list[str]
    left_out: frozenset[str] = frozenset()

    def within(self, tolerance: float) -> bool:
        """Whether both are the same up to a relative difference, and something was compared."""
        compared = any(one.compared for one in self.found.values())
        return compared and not self.unequal and all(one.largest <= tolerance for one in self.found.values())


def without_gradient(training: Iterable[Moment]) -> list[str]:
    """The weights whose gradients are rounding alone, such as a bias before BatchNormalization, which takes it out.

    Adam makes steps of them that are as large as any, in directions that mean nothing. They are known by their mean
    gradient: it is never more than 1e-4 of the largest in the model.
    """
    weights: set[str] = set()
    largest: dict[tuple[str, int], float] = {}
    for moment in training:
        if moment.kind == WEIGHTS:
            weights.update(moment.values)
        elif moment.kind == SLOTS:
            for name, value in moment.values.items():
                about = _moment(name)
                if about is not None and value.size:
                    largest[about] = max(largest.get(about, 0.0), float(np.abs(value).max()))
    limits = {
        order: _NOTHING**order * max((found for (_, one), found in largest.items() if one == order), default=0.0)
        for order in (1, 2)
    }
    orders = {order for _, order in largest}
    idle = {about for (about, order), found in largest.items() if order == min(orders) and found <= limits[order]}
    found = {name for name in weights if _flat(name) in idle}
    if found:  # what takes such a bias out follows it
        found.update(name for name in weights if _plain(name).endswith("/moving_mean"))
    return sorted(found)


def _moment(slot: str) -> tuple[str, int] | None:
    """Whose mean gradient a slot holds, and of which order; None for any other slot."""
    parts = _plain(slot).split("/")
    if len(parts) > 2 and parts[1] in _MOMENTS:  # Keras 2: optimizer, slot, the path of the weight
        return "_".join(parts[2:]), _MOMENTS[parts[1]]
    if len(parts) > 2 and parts[-1] in _MOMENTS:  # its legacy optimizers
        return "_".join(parts[1:-1]), _MOMENTS[parts[-1]]
    about, _, kind = parts[-1].rpartition("_")
    return (about, _MOMENTS[kind]) if about and kind in _MOMENTS else None


def _is_slot_of(slot: str, weights: Iterable[str]) -> bool:
    """Whether a slot, of whichever kind, belongs to one of these weights, whose names are flat."""
    rest = _flat(slot.partition("/")[2])
    return any(rest.startswith(f"{weight}_") or rest.partition("_")[2] == weight for weight in weights)


def _plain(name: str) -> str:
    """Without the number of TensorFlow's output, which names of Keras 2 have."""
    return name.partition(":")[0]


def _flat(name: str) -> str:
    """The name of a weight as it is a part of the names of its slots in Keras 3."""
    return _plain(name).replace("/", "_")


def compare(expected: Iterable[Moment], got: Iterable[Moment], leave_out: Iterable[str] = ()) -> Comparison:
    """Hold a training beside the one that it should be like.

    Args:
        expected: that of one rank.
        got: the other.
        leave_out: weights that are not compared, nor are their slots.
    """
    result = Comparison({kind: Found() for kind in KINDS}, [], frozenset(leave_out))
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
        _compare(one, other, result)
    return result


def _compare(one: Moment, other: Moment, result: Comparison) -> None:
    found = result.found[one.kind]
    alone = sorted(set(one.values) ^ set(other.values))
    if alone:
        result.unequal.append(f"{one.kind} after step {one.step}: {', '.join(alone[:4])} not in both")
    left_out = {_flat(name) for name in result.left_out}
    for name in [name for name in one.values if name in other.values]:
        if name in result.left_out or (one.kind == SLOTS and _is_slot_of(name, left_out)):
            continue
        a, b = one.values[name], other.values[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            result.unequal.append(f"{name} after step {one.step}: {a.dtype} {a.shape}, and {b.dtype} {b.shape}")
            continue
        apart = difference(a, b)
        found.compared += a.size
        found.by_step[one.step] = max(found.by_step.get(one.step, 0.0), apart)
        if apart > ROUNDING and found.first is None:
            found.first = one.step
        if apart > found.largest or not found.where:
            found.largest, found.where, found.step = max(apart, found.largest), name, one.step


def difference(expected: np.ndarray, got: np.ndarray) -> float:
    """The largest difference of two arrays, relative to the largest entry; infinite where only one is not a number.

    Entries that are all below 1e-4 are held against that: 0 on one rank may be 1e-12 on several.
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
