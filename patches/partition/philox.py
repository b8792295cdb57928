"""TensorFlow's counter-based generator: where the numbers of some rows lie in a draw of all rows.

Philox makes a group of numbers from each value of a counter; the numbers of a tensor lie one group after the other, in
the order of the flat tensor, whatever its shape. So the part of a draw from element e on is a draw with a counter that
is e / (numbers in a group) further on; where e is not at the start of a group, the numbers before it are left out.
(Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011; the layout is that of TensorFlow's kernels.)
How far an op has come that keeps its counter itself is in a variable, see `States`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

#: The algorithm, by its number; and what lets a kernel choose, which on CPU and GPU is Philox.
PHILOX, CHOSEN = 1, 3
#: By which a kernel that keeps its counter moves it on for each number.
PER_NUMBER = 256


class Layout(NamedTuple):
    """How numbers lie.

    Attributes:
        group: how many numbers come of one step of the counter, or of a jump.
        jump: by how much the counter moves on for each group.
    """

    group: int
    jump: int


def plain(dtype: tf.DType) -> Layout:
    """The layout of draws that take the same number of random bits for each number: uniform ones, normal ones."""
    return Layout(2 if dtype.size == 8 else 4, 1)


def rejecting(dtype: tf.DType) -> Layout:
    """The layout of draws that may reject numbers (truncated normal ones): a reserve of 256 for each."""
    return Layout(*(2, 128) if dtype.size == 8 else (4, 256))


#: That of gamma draws, which reserve 256 steps of the counter for each number.
GAMMA = Layout(1, 256)


def stretch(op: Callable[[Any, Any], Any], begin: Any, count: Any, counter: Any, layout: Layout) -> Any:
    """Some numbers of a draw, flat.

    Args:
        op: draws, given a shape and a counter.
        begin: int64 scalar, the first one; count: int64 scalar, how many.
        counter: uint64 (2,), of the whole draw.
        layout: of the numbers.
    """
    left_out = begin % layout.group
    numbers = op((count + left_out)[None], advanced(counter, begin // layout.group * layout.jump))
    return numbers[left_out:]


def advanced(counter: Any, steps: Any) -> Any:
    """A counter, uint64 (2,), moved on by `steps`, an int64 scalar. The low word of `counter`, which a stateless draw
    begins with 0, never comes to its end."""
    low = tf.bitcast(counter, tf.int64) + tf.stack([steps, tf.zeros_like(steps)])
    return tf.bitcast(low, tf.uint64)


#: Counters by op of a step, as `States` names it.
Shared = dict[tuple[Any, ...], Any]


class States:
    """The counters of one plan. Plans that stand for one trace of one rank share them: it has an op once, whatever the
    shapes of the batches that are rebuilt here."""

    def __init__(self, shared: Shared):
        """Args: shared: the counters that other plans have made; completed."""
        self._shared, self._own = shared, dict[Any, Any]()
        self._alike: Counter[Any] = Counter()

    def of(self, op: Any) -> Any:
        """The counter of an op: a variable, int64 scalar, 0 at first.

        Args:
            op: with attributes `seed` and `seed2`. Another trace has the one of the same name and seeds, the first of
                them for the first.
        """
        if op not in self._own:
            name = op.type, op.name, op.get_attr("seed"), op.get_attr("seed2")
            key = *name, self._alike[name]
            self._alike[name] += 1
            if key not in self._shared:
                with tf.init_scope(), tf.device("CPU:0"):
                    # Of the class itself: a tf.Variable made while a function is traced has it traced once more.
                    variable = ResourceVariable(0, trainable=False, dtype=tf.int64)
                self._shared[key] = variable
            self._own[op] = self._shared[key]
        return self._own[op]
