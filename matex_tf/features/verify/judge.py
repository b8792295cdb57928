"""Whether several ranks have given the answer of one: what one rank makes of rounding is no other answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from matex_tf.features.verify import compare, record
from matex_tf.features.verify.compare import Comparison

#: How often the script runs on one rank with other last digits, where several ranks seem to give something else.
NUDGES = 2


@dataclass(frozen=True)
class Judgement:
    """What is to be said of several ranks.

    Attributes:
        found: how far several ranks are from one; where the script does not repeat itself, one rank from itself.
        repeats: whether one rank gives the same again: else of several ranks nothing can be said.
        same: whether several ranks give the answer of one.
    """

    found: Comparison
    repeats: bool
    same: bool


def judge(
    one: str | os.PathLike[str],
    several: str | os.PathLike[str],
    alone: Callable[[int], str | os.PathLike[str]],
    tolerance: float,
) -> Judgement:
    """Hold the record of several ranks against that of one.

    Args:
        one, several: the folders of the records.
        alone: makes one more record on one rank, and gives its folder; its argument is 0 for the training as it is,
            else the number of the other last digits that weights shall get.
        tolerance: the largest difference that is none.
    """
    found = compare.compare(record.read(one), record.read(several))
    if found.within(tolerance):
        return Judgement(found, True, True)
    again = alone(0)
    repeated = compare.compare(record.read(one), record.read(again))
    first = repeated.first_log()
    if repeated.unequal or (first is not None and first.largest > tolerance):
        return Judgement(repeated, False, False)
    rounding = compare.Rounding()
    for other in (again, *(alone(nudge) for nudge in range(1, NUDGES + 1))):
        rounding.add(record.read(one), record.read(other))
    found = compare.compare(record.read(one), record.read(several), tolerance, rounding)
    return Judgement(found, True, found.within(tolerance))
