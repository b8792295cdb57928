"""Successive halving: candidates train a little, the worse half stops, the others go on for twice as long.

Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016,
figure 3.
With n = 2^k candidates and a training of E epochs, those of rung r are trained up to epoch E / 2^(k - r), and the last
one to E. Where E is less than n, rungs end after one epoch, two, four and so on: the first ones, with most candidates,
differ, and only the last ones, at E / 2, choose by what is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from matex_tf.errors import MatexError


@dataclass
class Candidate:
    """A network that is one of several.

    Attributes:
        number: from 0.
        values: of its ranges.
        scores: after each rung that it was trained in; -inf where it failed.
        epochs: up to which it was trained, after each of these rungs.
        score: the last of `scores`.
        failed: why it came to no score; empty where it did.
        rows: that it was trained on, over all epochs.
        details: what else was found, such as the name of the score.
    """

    number: int
    values: dict[str, Any] = field(default_factory=dict)
    scores: list[float] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    failed: str = ""
    rows: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def score(self) -> float:
        return self.scores[-1] if self.scores and not self.failed else -math.inf


@dataclass
class Rung:
    """What was done in a rung: up to which epoch whom, in how many seconds, and who goes on."""

    until: int
    trained: list[int]
    kept: list[int]
    seconds: float


def until(epochs: int, rung: int, rungs: int) -> int:
    """The epoch up to which the candidates of a rung are trained: E / 2^(k - r), but 2^r at least, up to E / 2.

    Args:
        epochs: E, of the whole training.
        rung: r, from 0.
        rungs: k, how many there are.
    """
    return max(1, math.ceil(epochs / 2 ** (rungs - rung)), min(2**rung, math.ceil(epochs / 2)))


def sizes(count: int, brackets: int = 1) -> list[int]:
    """How many candidates each bracket begins with: half as many as the one before, and two at least.

    Args:
        count: of the first one.
        brackets: how many there are at most; those that would begin with one candidate are left out.
    """
    every = [math.ceil(count / 2**bracket) for bracket in range(brackets)]
    return [every[0], *(size for size in every[1:] if size > 1)]


def halve(
    count: int,
    train: Callable[[Sequence[Candidate], float], float],
    epochs: Callable[[], int],
    say: Callable[[int, int, Rung, Sequence[Candidate]], None] = lambda *_: None,
    brackets: int = 1,
) -> tuple[list[Candidate], list[Rung]]:
    """Let the worse half stop until one is left.

    Args:
        count: candidates.
        train: trains candidates up to a part of the whole training (0 to 1), and notes what it finds in them; returns
            seconds.
        epochs: of the whole training, once `train` has been called.
        say: is told of each rung: its number from 1, how many there are, what was done, all candidates.
        brackets: how often; each has half as many candidates as the one before, and trains them for twice as long
            before the first of them stop (Hyperband, Li et al., JMLR 2018).

    Returns:
        All candidates, the best first, and what was done in each rung. The best was trained as far as the last rung
        says, and is yet to be trained on.

    Raises:
        MatexError: no candidate came to a score.
    """
    everyone: list[Candidate] = []
    done: list[Rung] = []
    winners: list[Candidate] = []
    every = sizes(count, brackets)
    total = sum(_rungs(size) for size in every)
    for size in every:
        alive = [Candidate(len(everyone) + number) for number in range(size)]
        everyone += alive
        rungs, before = _rungs(size), 0
        for rung in range(rungs):
            seconds = 0.0
            if not before or until(epochs(), rung, rungs) > before:  # few epochs: the next budget may be this one
                # Half an epoch less: the part is rounded up to whole epochs.
                part = (until(epochs(), rung, rungs) - 0.5) / epochs() if before else 1 / 2 ** (rungs - rung)
                seconds = train(alive, part)
            before = until(epochs(), rung, rungs)
            trained = [one.number for one in alive]
            alive = better_half(alive)
            done.append(Rung(before, trained, [one.number for one in alive], seconds))
            say(len(done), total, done[-1], everyone)
            if not alive:
                break  # all of them failed
        winners += alive
    if not winners:
        raise MatexError(f"no candidate came to a score. The first of them: {everyone[0].failed}")
    best = min(winners, key=lambda one: (-one.score, one.number))
    order = sorted(everyone, key=lambda one: (one is not best, -(one.epochs or [0])[-1], -one.score, one.number))
    return order, done


def _rungs(count: int) -> int:
    return math.ceil(math.log2(count)) if count > 1 else 0


def better_half(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that go on: the better half, rounded up; of equals the first; none that failed."""
    order = sorted(candidates, key=lambda one: (-one.score, one.number))
    keep = order[: math.ceil(len(order) / 2)]
    return sorted((one for one in keep if one.score > -math.inf), key=lambda one: one.number)
