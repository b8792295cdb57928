"""Exchanges of one run of a session come in the same order on every rank.

Ops of a tf.function run in program order, those of a session's graph as soon as their inputs are there. So each
exchange has a number, in the order in which the graph was built, and waits until those of lower numbers that belong to
the same run are through. It waits with its inputs at hand, so that it keeps nothing waiting but a thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_SECONDS = 0.1  # after which a waiting op looks whether its run has been given up

_numbers: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
_turn = threading.Condition()
_pending: list[int] = []  # the exchanges of this run that are not through yet
_given_up = False


def in_graph_order(inputs: Sequence[tf.Tensor], exchange: Callable[[], list[Any]]) -> list[Any]:
    """Build the ops of an exchange, between ops that wait for its turn and end it.

    Args:
        inputs: the tensors that are exchanged.
        exchange: builds the ops; gives dense tensors.
    """
    known = _numbers.setdefault(tf.compat.v1.get_default_graph(), {})
    number = len(known)

    def enter() -> np.ndarray:
        with _turn:
            while number in _pending and min(_pending) != number and not _given_up:
                _turn.wait(_SECONDS)
        return np.array(0, np.int32)

    def leave() -> np.ndarray:
        with _turn:
            if number in _pending:
                _pending.remove(number)
            _turn.notify_all()
        return np.array(0, np.int32)

    with tf.control_dependencies(inputs):
        entered = tf.numpy_function(enter, [], tf.int32, stateful=True)
    with tf.control_dependencies([entered]):
        results = exchange()
    with tf.control_dependencies(results):
        left = tf.numpy_function(leave, [], tf.int32, stateful=True)
    known[left.op.name] = number
    with tf.control_dependencies([left]):
        return [tf.identity(result) for result in results]


def of(graph: tf.Graph, ops: set[str]) -> list[int]:
    """The numbers of the exchanges among these ops, by name."""
    return sorted(number for name, number in _numbers.get(graph, {}).items() if name in ops)


def begin(numbers: Sequence[int]) -> None:
    """A run with these exchanges begins."""
    global _given_up
    with _turn:
        _given_up = False
        _pending[:] = numbers


def end() -> None:
    """It has ended, by an error perhaps."""
    global _given_up
    with _turn:
        _given_up = True
        _pending.clear()
        _turn.notify_all()
