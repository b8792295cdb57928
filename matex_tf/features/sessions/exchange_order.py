"""Exchanges of one run of a session come in the same order on every rank.

Ops of a tf.function run in program order, those of a session's graph as soon as their inputs are there. So each
exchange has a number, in the order in which the graph was built, and waits until those of lower numbers that belong to
the same run are through. It waits with its inputs at hand, so that it keeps nothing waiting but a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.features.sessions import graph_state

_SECONDS = 0.1  # after which a waiting op looks whether its run has been given up


def in_graph_order(inputs: Sequence[tf.Tensor], exchange: Callable[[], list[Any]]) -> list[Any]:
    """Build the ops of an exchange, between ops that wait for its turn and end it.

    Args:
        inputs: the tensors that are exchanged.
        exchange: builds the ops; gives dense tensors.
    """
    graph = tf.compat.v1.get_default_graph()
    known, run = graph_state.of(graph).exchanges, graph_state.of_session(graph)
    number = len(known)

    def enter() -> np.ndarray:
        with run.turn:
            while number in run.pending and min(run.pending) != number and not run.given_up:
                run.turn.wait(_SECONDS)
        return np.array(0, np.int32)

    def leave() -> np.ndarray:
        with run.turn:
            if number in run.pending:
                run.pending.remove(number)
            run.turn.notify_all()
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
    """The numbers of the exchanges of a `graph` among these `ops`, by name."""
    return sorted(number for name, number in graph_state.of(graph).exchanges.items() if name in ops)
