"""The state of ops that draw by seeds of their own (`tf.random.normal(shape, seed=3)`), in place of their kernels.

A kernel of TensorFlow begins with a counter that the seeds make, and moves it on by 256 for each number. Here a
variable counts that, and the op is one without state. So a rank draws its rows alone, a step that is run again
because a rank has died draws the same, and a checkpoint has it.

TensorFlow traces a compiled function of the script once for each shape, and each trace has kernels of its own. In a
loop the first batch is whole on every rank, and then come the parts: shapes that one rank never sees. So there the
states of all traces of an op are one, with an entry for each size of the whole batch.

Relies on (TensorFlow 2.16 to 2.21, private): `tensorflow.python.ops.resource_variable_ops.ResourceVariable`, and
`tensorflow.python.framework.random_seed._graph_to_seed_dict`, which counts the ops of a graph that draw.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import random_seed as _random_seed
from tensorflow.python.ops import resource_variable_ops as _variables

from matex_tf.core import graph_ops
from matex_tf.exchange import virtual_ranks
from matex_tf.patches.common import batch_share, seeds
from matex_tf.patches.partition.philox import PER_NUMBER
from matex_tf.state import notes

_TYPES = tf.types.experimental
#: What `tf.function` makes; TensorFlow 2.13 and 2.14 have the older name.
_COMPILED = _TYPES.PolymorphicFunction if hasattr(_TYPES, "PolymorphicFunction") else _TYPES.GenericFunction


class _Draws:
    """Of a graph.

    Attributes:
        ops: how many of its ops draw.
        held: what it counts with.
        of_parts: its states by the number of the op, if the parts of a batch take turns.
    """

    def __init__(self) -> None:
        self.ops = 0
        self.held: list[Any] = []
        self.of_parts: dict[int, Any] = {}


class _Tables(dict[tuple[Any, ...], Any]):
    """Of a compiled function, by op: what its traces share."""


def keeps(part: batch_share.StepShare) -> bool:
    """Whether the state of an op that is made now is kept here: in the graph of a step, or of a script's loop.

    Not in a function that a step calls: TensorFlow makes kernels for each call.
    """
    if tf.executing_eagerly():
        return False
    if part is batch_share.of_step():
        return getattr(part.taken, "graph", None) is tf.compat.v1.get_default_graph()
    return _function() is not None


def move_on(part: batch_share.StepShare, seed: tuple[int, int], size: Any) -> Any:
    """The counter of a draw as int64 scalar; that of the next is further on.

    Args:
        part: of the step, or of the loop, in which it draws.
        seed: the op's two.
        size: int64 scalar, the numbers of the draw of the whole batch.
    """
    graph = tf.compat.v1.get_default_graph()
    draws = notes.of(graph, _Draws)
    number, draws.ops = draws.ops, draws.ops + 1
    if (one := virtual_ranks.current()) is not None:
        return _of_parts(graph, number, one, size)
    if part is batch_share.of_step():
        with tf.init_scope(), tf.device("CPU:0"):
            state = _new_state()
        draws.held.append(state)
        seeds.note_state(state)
        begun = state.read_value()
        state.assign_add(size * PER_NUMBER)
        return begun
    of_function = notes.of(_function(), _Tables)
    op = len(graph_ops.within(graph)), number, seed  # bodies of loops have graphs of their own
    if op not in of_function:
        with tf.init_scope(), tf.device("CPU:0"):
            of_function[op] = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=0)
    table = of_function[op]
    draws.held.append(table)
    entry = tf.cast(part.total, tf.int64) if _retraced(part, graph) else tf.constant(0, tf.int64)
    begun = table.lookup(entry)
    table.insert(entry, begun + size * PER_NUMBER)
    return begun


def _new_state() -> Any:
    # Of the class itself: a tf.Variable that is made while a function is traced has it traced once more.
    return _variables.ResourceVariable(0, trainable=False, dtype=tf.int64, name="matex_tf_draws")


def _of_parts(graph: Any, number: int, one: Any, size: Any) -> Any:
    """The state of parts of a batch that take turns: all draw from one counter, and the last moves it on."""
    shared = notes.of(graph, _Draws).of_parts
    if number not in shared:
        with tf.init_scope(), tf.device("CPU:0"):
            shared[number] = _new_state()
        seeds.note_state(shared[number])
    begun = shared[number].read_value()
    if one.is_last:
        shared[number].assign_add(size * PER_NUMBER)
    return begun


class Turns:
    """How many ops each part of a batch has made that draw, in a graph: the same op has the same seed in all parts."""

    def __init__(self, graph: Any, parts: int):
        self._graph = graph
        self._counts = [self._counted()] * parts

    def enter(self, place: int) -> None:
        """A part is about to go on."""
        notes.of(self._graph, _Draws).ops, _random_seed._graph_to_seed_dict[self._graph] = self._counts[place]

    def leave(self, place: int) -> None:
        """It has stopped."""
        self._counts[place] = self._counted()

    def _counted(self) -> tuple[int, int]:
        return notes.of(self._graph, _Draws).ops, _random_seed._graph_to_seed_dict.get(self._graph, 0)


def _function() -> Any:
    """The compiled function that is being traced; None without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, _COMPILED):
            return found
        frame = frame.f_back
    return None


def _retraced(part: batch_share.StepShare, graph: Any) -> bool:
    """Whether one rank has a trace for each size of the batch: of steps whose arguments have a fixed shape."""
    if part is batch_share.of_predict():
        return True
    given = [one.shape for one in graph.inputs if one.dtype not in (tf.resource, tf.variant)]
    return all(shape.is_fully_defined() for shape in given)
