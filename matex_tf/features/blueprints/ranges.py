"""What a value of a network may be: 32..512, one of [relu, gelu], or one value alone.

    32..512            whole numbers; 32..512 step 32 takes each 32nd
    1e-4..1e-2         numbers
    [relu, gelu]       one of these; {choice: [3, 5]} where Keras would take a list for a value
    64                 always this

Where the ends of a range are eight times or more apart it is drawn by its logarithm, unless it says `linear`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf.errors import SettingError, quoted

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*(?:step\s+({_NUMBER}))?\s*(log|linear)?\s*")
#: So far apart are the ends of a range that is drawn by its logarithm.
_WIDE = 8


@dataclass(frozen=True)
class Range:
    """What one value may be.

    Attributes:
        low, high: the ends of a range of numbers, which belong to it; without `choices`.
        step: only every so-manieth number; 0 for all.
        whole: whether these are whole numbers.
        log: whether a value is drawn by its logarithm.
        choices: one of these.
    """

    low: float = 0
    high: float = 0
    step: float = 0
    whole: bool = True
    log: bool = False
    choices: tuple[Any, ...] = ()

    def at(self, part: float) -> Any:
        """The value at a part of the way, 0 to 1, such that each is met as often as the others."""
        if self.choices:
            return self.choices[min(int(part * len(self.choices)), len(self.choices) - 1)]
        widen = 0.5 if self.whole and not self.step else 0.0  # so that the ends are met as often as the rest
        if self.step:
            count = int((self.high - self.low) / self.step + 1e-9) + 1
            steps = [self.low + place * self.step for place in range(count)]
            if self.log:
                near = self._between(self.low, steps[-1], part)
                return self._made(min(steps, key=lambda value: abs(value - near)))
            return self._made(steps[min(int(part * count), count - 1)])
        low = self.low - widen if self.low - widen > 0 or not self.log else self.low
        value = self._between(low, self.high + widen, part)
        return self._made(min(max(value, self.low), self.high))

    def _between(self, low: float, high: float, part: float) -> float:
        if self.log:
            return math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
        return low + part * (high - low)

    def _made(self, value: float) -> float | int:
        return int(round(value)) if self.whole else float(f"{value:.6g}")

    @property
    def default(self) -> Any:
        """Where nothing is drawn: the largest whole number, the middle of other numbers, the first choice."""
        if self.choices:
            return self.choices[0]
        return self._made(self.high) if self.whole else self.at(0.5)

    def draw(self, name: str, number: int, of: int, seed: int) -> Any:
        """The value that one of several candidates has, as far from the others' as can be.

        Each of `of` equal parts of the range has one candidate (a Latin hypercube; McKay et al. 1979).

        Args:
            name: of the value; each has an order of candidates of its own.
            number: of the candidate, from 0.
            of: how many there are.
            seed: of the draw.
        """
        random = np.random.default_rng([seed, of, *name.encode()])
        order, within = random.permutation(of), random.random(of)
        return self.at(float((order[number % of] + within[number % of]) / of))


def is_range(value: Any) -> bool:
    """Whether something that stands in a Keras config is meant as a range."""
    if isinstance(value, str):
        return _RANGE.fullmatch(value) is not None
    if isinstance(value, dict):
        return set(value) == {"choice"}
    return isinstance(value, (list, tuple)) and len(value) > 1 and all(isinstance(one, str) for one in value)


def parse(name: str, value: Any) -> Range:
    """A range as a blueprint has it.

    Args:
        name: of the value, for errors.
        value: what stands there: a text as above, a list, {"choice": list}, or anything else for that value alone.

    Raises:
        SettingError: it cannot be one; names it, and says what it can be.
    """
    if isinstance(value, dict) and set(value) == {"choice"}:
        value = value["choice"]
        if not isinstance(value, (list, tuple)):
            raise SettingError(f"{name}: choice is {quoted(value)}; it must be a list, such as [3, 5].")
    if isinstance(value, (list, tuple)):
        if not value:
            raise SettingError(f"{name} is an empty list: give it at least one choice.")
        return Range(choices=tuple(value))
    if isinstance(value, str) and ".." in value:
        return _parse_text(name, value)
    if isinstance(value, dict):
        raise SettingError(f"{name} is {quoted(value)}; it must be a range as 32..512, a list of choices, or a value.")
    return Range(choices=(value,))


def _parse_text(name: str, text: str) -> Range:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise SettingError(f"{name} is {quoted(text)}; a range looks like 32..512, 32..512 step 32 or 1e-4..1e-2 log.")
    words = [word for word in found.group(1, 2, 3) if word]
    whole = all(re.fullmatch(r"[-+]?\d+", word) for word in words)
    return numbers(name, float(found[1]), float(found[2]), float(found[3] or 0), whole, found[4] or "")


def numbers(name: str, low: float, high: float, step: float = 0, whole: bool = True, scale: str = "") -> Range:
    """A range of numbers.

    Args:
        name: of the value, for errors.
        low, high, step, whole: see `Range`.
        scale: "log" or "linear"; empty to look at how far apart the ends are.

    Raises:
        SettingError: such a range has nothing in it, or no logarithm.
    """
    if low > high:
        raise SettingError(f"{name} goes from {low:g} to {high:g}: the smaller end comes first.")
    if step < 0:
        raise SettingError(f"{name} has a step of {step:g}: it must be above 0.")
    if scale == "log" and low <= 0:
        raise SettingError(f"{name} begins at {low:g}, which has no logarithm: begin above 0, or leave out log.")
    log = scale == "log" or (not scale and low > 0 and high / low >= _WIDE)
    return Range(low, high, step, whole, log)


def shown(values: dict[str, Any], most: int = 0) -> str:
    """Values in a line: units 128, activation relu.

    Args:
        values: by name.
        most: characters; of a longer line the end is left out. 0 for no limit.
    """
    text = ", ".join(f"{name} {_short(value)}" for name, value in values.items())
    return text if not most or len(text) <= most else text[: most - 1] + "…"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def drawn(ranges: dict[str, Range], number: int, of: int, seed: int) -> dict[str, Any]:
    """All values of a candidate; see `Range.draw`."""
    return {name: one.draw(name, number, of, seed) for name, one in ranges.items()}


def parse_all(blueprint: dict[str, Any]) -> dict[str, Range]:
    """Ranges by name; see `parse`."""
    return {name: parse(name, value) for name, value in blueprint.items()}


def names(ranges: Sequence[str]) -> str:
    """For messages."""
    return ", ".join(ranges) or "none"
