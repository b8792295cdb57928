"""One training step, held against one rank.

Rank 0 runs the step once by itself before it is run: on the whole batch, with nobody to exchange with, and puts back
all that it changes. The graph is that of the step, so nothing of the script is traced or called once more. What this
gives to the exchange is the gradient of one rank. What the ranks give to it in the real step is added up beside it.

A rank gives w_r g_r, w_r = rows / total. Where those do not add up to the gradient of one rank, a sum of the g_r does
if the loss is a sum over the batch. Anything else compares rows, or draws random numbers otherwise.

In a deep network rounding alone can change a gradient by several per cent: where the input of a ReLU is as good as 0,
the last digit decides whether the unit passes its gradient on. So where gradients differ, rank 0 runs the step a few
times more, from weights whose last digits are others, and what that changes is rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.exchange import tf_op
from matex_tf.patches.checking import effects, precision
from matex_tf.patches.common import log_once
from matex_tf.strategies.sync import ALONG
from matex_tf.strategies.sync import WHAT as EXCHANGE

#: With `--check auto`: the bytes of the weights and of the batch, and the rows, up to which a step is held against one.
MOST_BYTES, MOST_ROWS = 64 << 20, 4096

#: How often weights are nudged, and by how many times what this changes gradients may differ.
_RUNS, _MARGIN = 4, 2.0

NO_GRADIENTS = "it exchanges no gradients"
_ROUNDING = "rounding alone changes its gradients by as much"
WHAT = "check the first step against one rank"
_PAGE = "docs/patched-steps.md, Losses that compare rows"

Part = tuple[str, np.ndarray]  # the label of a gradient, and the gradient


class Check:
    """A step that is held against one rank. Every rank makes one, and comes to the same calls of it.

    Args:
        name: of what is trained, in words.
        weight: this rank's part of the batch, 0 to 1.
        besides: reads what else belongs to the gradients of a step once it has run, such as what it has accumulated.
    """

    def __init__(self, name: str, weight: float, besides: Callable[[], list[Part]] = list):
        self.name = name
        self._weight = weight
        self._besides = besides
        self._generation = world.current().generation
        self._begun = besides()
        self._alone: list[list[Part]] = []
        self._again: Callable[[], list[list[list[Part]]]] = list  # the same, with other last digits, several times
        self._own: list[list[Part]] = []
        self._failed = ""

    def run_alone(self, run: Callable[[], Any], function: Any) -> None:
        """Run the step as on one rank, and put everything back. For rank 0.

        Args:
            run: runs it on the whole batch.
            function: the ConcreteFunction that it runs.
        """

        def parts() -> list[list[Part]]:
            with tf_op.watching(alone=True) as seen:
                run()
                return self._parts(seen)

        def again() -> list[list[list[Part]]]:
            random, found = np.random.default_rng(0), []
            back = effects.kept(function)
            try:
                for _ in range(_RUNS):
                    to_begin()
                    effects.nudge(function, precision.current().nudge, random)
                    found.append(parts())
            finally:
                back()
            return found

        try:
            to_begin = effects.kept(function)
            try:
                self._alone = parts()
            finally:
                to_begin()
        except Exception as error:  # there may be no memory for the whole batch: the training itself goes on
            self._failed = f"rank 0 could not run it on the whole batch ({type(error).__name__})"
        self._again = again

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """The step itself runs inside of this block."""
        with tf_op.watching() as seen:
            yield
        self._own = self._parts(seen)

    def tell(self) -> str:
        """Print a line where the step is not that of one rank. All ranks come here after the step.

        Returns:
            Why it could not be found out, on every rank; "" where it could.
        """
        ranks = world.current()
        updates = [self._add_up(parts, 1.0) for parts in self._own]
        if ranks.generation != self._generation:
            return "a rank has died meanwhile"
        reason, which, rounding = "", -1, self._least()
        if ranks.rank == 0:
            reason = self._incomparable(updates)
            if not reason:
                which = self._first_apart(updates, rounding)
            if which >= 0:
                rounding = self._rounding()
                which = self._first_apart(updates, rounding)
                reason = "" if which >= 0 else _ROUNDING
        reason, which = ranks.broadcast((reason, which), WHAT)
        if which < 0:
            return reason
        summed = settings.current().loss == "sum"
        scale = self._weight if summed else (1 / self._weight if self._weight else 0.0)
        otherwise = self._add_up(self._own[which], scale)
        if ranks.rank == 0 and ranks.generation == self._generation:
            alone, found = self._alone[which], updates[which]
            log_once.log(self._line(alone, found, bool((_apart(alone, otherwise) <= rounding[which]).all())))
        return ""

    def _first_apart(self, updates: list[list[Part]], rounding: list[np.ndarray]) -> int:
        """Which update of all ranks is the first that is not that of one; -1 where each is."""
        several = zip(self._alone, updates, rounding, strict=True)
        return next((at for at, (one, all_, most) in enumerate(several) if (_apart(one, all_) > most).any()), -1)

    def _least(self) -> list[np.ndarray]:
        """For each gradient of each update the difference that is always taken for rounding."""
        return [np.full(len(parts), precision.current().tolerance) for parts in self._alone]

    def _rounding(self) -> list[np.ndarray]:
        """For each gradient what other last digits of the weights change, with a margin; at least `_least`."""
        found = self._least()
        with contextlib.suppress(tf.errors.ResourceExhaustedError):
            for run in self._again():
                for most, one, nudged in zip(found, self._alone, run, strict=True):
                    np.maximum(most, _MARGIN * _apart(one, nudged), out=most)
        return found

    def _parts(self, seen: dict[object, tuple[tf_op.Given, list[np.ndarray]]]) -> list[list[Part]]:
        updates = [_dense(given, arrays) for given, arrays in seen.values() if given.what == EXCHANGE]
        gathered = [
            (label, now - before) for (label, now), (_, before) in zip(self._besides(), self._begun, strict=True)
        ]
        return [parts for parts in updates or [gathered] if parts]

    def _add_up(self, parts: Sequence[Part], scale: float) -> list[Part]:
        """The sum over ranks of what each has."""
        flat = np.concatenate([array.reshape(-1) for _, array in parts]) * np.float32(scale)
        if not self._weight:
            flat = np.zeros_like(flat)
        total = world.current().allreduce(flat, WHAT)
        ends = np.cumsum([array.size for _, array in parts])[:-1]
        pieces = np.split(total, ends)
        return [(label, piece.reshape(array.shape)) for (label, array), piece in zip(parts, pieces, strict=True)]

    def _incomparable(self, updates: list[list[Part]]) -> str:
        if self._failed:
            return self._failed
        labels = [[label for label, _ in parts] for parts in updates]
        if not updates:
            return NO_GRADIENTS
        if [[label for label, _ in parts] for parts in self._alone] != labels:
            return "it has other gradients on one rank"
        if not all(np.isfinite(array).all() for parts in (*updates, *self._alone) for _, array in parts):
            return "its gradients are not finite"
        return ""

    def _line(self, alone: list[Part], found: list[Part], known: bool) -> str:
        ranks, apart = world.current().size, _apart(alone, found)
        worst, (label, _) = apart.max(), alone[int(apart.argmax())]
        one, all_ = (np.concatenate([array.reshape(-1) for _, array in parts]) for parts in (alone, found))
        factor = float(np.dot(one, all_) / max(np.dot(one, one), 1e-30))
        largest = f"{label.removeprefix('the gradient of ')} by {worst:.0%}"
        if not known:
            return (
                f"{self.name}: the gradients of {ranks} ranks are not those of one rank ({largest}): its loss, or a "
                "layer, compares rows of the batch, or a part of the loss is a sum over it. Compute that from "
                f"matex_tf.all_rows, and divide sums by the rows of the batch ({_PAGE})."
            )
        times = f"the gradients of {ranks} ranks are {factor:.3g} times those of one rank ({largest})"
        if settings.current().loss == "sum":
            return f"{self.name}: its loss is a mean over rows, and no sum: {times}. Leave out --loss sum ({_PAGE})."
        return (
            f"{self.name}: its loss is a sum over the batch, which counts as a mean over rows: {times}. Take --loss "
            f"sum, or divide the loss by the rows of the batch ({_PAGE})."
        )


def affordable(weights: Sequence[Any], batch_bytes: int, rows: int) -> str:
    """Why a step is not held against one rank with `--check auto`, in words; "" where it is small enough.

    Args:
        weights: variables that it trains. batch_bytes, rows: of the whole batch, over all ranks.
    """
    size = sum(int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size for variable in weights)
    if size > MOST_BYTES or batch_bytes > MOST_BYTES or rows > MOST_ROWS:
        return "it is large"
    return ""


def aside() -> str:
    """Why no step of this run can be held against one rank, in words; "" where they can."""
    if not strategies.current().averages_gradients:
        return f"--strategy {strategies.current().name} averages no gradients"
    return ""


def say_why_not(name: str, reason: str) -> None:
    """Print that a step could not be compared with one rank, if there is a reason to say so; see `why_not`."""
    if text := why_not(name, reason):
        log_once.log(text)


def why_not(name: str, reason: str) -> str:
    """That a step could not be compared with one rank, in words; "" if there is no reason to say so.

    With --check off there is none. With --check auto the line on the strategy is enough, and after rounding, with which
    the step was compared.

    Args:
        name: of the step, the first words. reason: why, in words; "" if it was compared.
    """
    asked = settings.current().check
    if asked == "off" or (asked == "auto" and reason in ("", aside(), _ROUNDING)):
        return ""
    taken_for_mean = "" if settings.current().loss == "sum" else "sums up the batch (--loss sum) or "
    return (
        f"{name} is not compared with one rank: {reason}. A loss or a layer of the script's own that {taken_for_mean}"
        f"compares rows would go unnoticed ({_PAGE}; --check off)."
    )


def _dense(given: tf_op.Given, arrays: list[np.ndarray]) -> list[Part]:
    """Gradients as float32 arrays; without what only travels along with them."""
    if given.shape is not None:
        values, indices = arrays
        whole = np.zeros(given.shape, np.float32)
        np.add.at(whole, indices, values.astype(np.float32))
        return [(given.labels[0], whole)]
    return [
        (label, array.astype(np.float32))
        for label, array in zip(given.labels, arrays, strict=True)
        if not label.startswith(ALONG)
    ]


def _apart(one: Sequence[Part], other: Sequence[Part]) -> np.ndarray:
    """For each gradient the largest difference, relative to its largest entry."""
    sizes = np.array([np.abs(array).max(initial=0) for _, array in one])
    found = [np.abs(a - b).max(initial=0) for (_, a), (_, b) in zip(one, other, strict=True)]
    return np.array(found) / np.maximum(sizes, max(precision.current().small * sizes.max(initial=0), 1e-30))
