"""One training step, held against one rank.

Rank 0 runs the step once by itself before it is run: on the whole batch, with nobody to exchange with, and puts back
all that it changes. The graph is that of the step, so nothing of the script is traced or called once more. What this
gives to the exchange is the gradient of one rank. What the ranks give to it in the real step is added up beside it.

A rank gives w_r g_r, w_r = rows / total. Where those do not add up to the gradient of one rank, a sum of the g_r does
if the loss is a sum over the batch. Anything else compares rows, or draws random numbers otherwise.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.exchange import tf_op
from matex_tf.patches.checking import effects
from matex_tf.patches.common import log_once
from matex_tf.strategies.sync import ALONG
from matex_tf.strategies.sync import WHAT as EXCHANGE

#: With `--check auto`: the bytes of the weights and of the batch, and the rows, up to which a step is held against one.
MOST_BYTES, MOST_ROWS = 64 << 20, 4096

#: Relative differences that are not those of sums taken in another order; the second of numbers of 16 bits.
TOLERANCE, OF_16_BITS = 1e-2, 1e-1
#: Times the latter, in a single gradient of a deep network, may be rounding where all together differ by less than it.
_ROUNDING = 5
#: Gradients below this part of the largest one are compared as if they were that large.
_SMALL = 1e-3

NO_GRADIENTS = "it exchanges no gradients"
WHAT = "check the first step against one rank"
_PAGE = "docs/how-it-works.md, Losses that compare rows"

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
        self._own: list[list[Part]] = []
        self._failed = ""

    def run_alone(self, run: Callable[[], Any], function: Any) -> None:
        """Run the step as on one rank, and put everything back. For rank 0.

        Args:
            run: runs it on the whole batch.
            function: the ConcreteFunction that it runs.
        """
        try:
            with effects.put_back(function), tf_op.watching(alone=True) as seen:
                run()
                self._alone = self._parts(seen)
        except Exception as error:  # there may be no memory for the whole batch: the training itself goes on
            self._failed = f"rank 0 could not run it on the whole batch ({type(error).__name__})"

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
        reason, which = "", -1
        if ranks.rank == 0:
            reason = self._incomparable(updates)
            if not reason:
                pairs = zip(self._alone, updates, strict=True)
                which = next((at for at, (one, all_) in enumerate(pairs) if _differ(one, all_)), -1)
        reason, which = ranks.broadcast((reason, which), WHAT)
        if which < 0:
            return reason
        summed = settings.current().loss == "sum"
        scale = self._weight if summed else (1 / self._weight if self._weight else 0.0)
        otherwise = self._add_up(self._own[which], scale)
        if ranks.rank == 0 and ranks.generation == self._generation:
            alone, found = self._alone[which], updates[which]
            log_once.log(self._line(alone, found, not _differ(alone, otherwise)))
        return ""

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
        ranks, (worst, label) = world.current().size, _worst(alone, found)
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
    """Why a step is not held against one rank with `--check auto`, in words; "" where it is small enough."""
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
    """With `--check on`: a line that a step is not held against one rank."""
    if settings.current().check == "on":
        log_once.log(f"--check on: {name} is not held against one rank: {reason}")


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


def _tolerance() -> float:
    policies = []
    for name in {"keras", "tf_keras"}.intersection(sys.modules):
        of_keras = sys.modules[name].mixed_precision
        policies.append(of_keras.global_policy() if hasattr(of_keras, "global_policy") else of_keras.dtype_policy())
    half = any(policy.compute_dtype in ("float16", "bfloat16") for policy in policies)
    return OF_16_BITS if half else TOLERANCE


def _differ(one: Sequence[Part], other: Sequence[Part]) -> bool:
    """Whether gradients differ by more than rounding."""
    worst, tolerance = _worst(one, other)[0], _tolerance()
    if tolerance != OF_16_BITS or not tolerance < worst <= _ROUNDING * tolerance:
        return worst > tolerance
    apart = sum(float(np.square(a - b, dtype=np.float64).sum()) for (_, a), (_, b) in zip(one, other, strict=True))
    size = sum(float(np.square(a, dtype=np.float64).sum()) for _, a in one)
    return apart > tolerance**2 * size


def _worst(one: Sequence[Part], other: Sequence[Part]) -> tuple[float, str]:
    """The largest relative difference, and of which gradient."""
    largest = max((np.abs(array).max(initial=0) for _, array in one), default=0)
    found = (0.0, "")
    for (label, a), (_, b) in zip(one, other, strict=True):
        scale = max(np.abs(a).max(initial=0), _SMALL * largest, 1e-30)
        found = max(found, (float(np.abs(a - b).max(initial=0) / scale), label))
    return found
