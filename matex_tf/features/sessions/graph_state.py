"""What is known of the graph of a session, and of the run of it that is under way: the ops built in it hold this."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf.core import graph_ops
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.state import notes


class GraphState:
    """Of one graph.

    Attributes:
        exchanges: the number of each exchange in it, by the name of the op that ends it; in the order of the graph.
        reached: the names of the ops that a run needs, by what it fetches.
        own_rows: whether ranks have fed it rows of their own.
        rows: what the run works on; None for what every rank has, and for nothing that has rows.
        turn: held where what follows is read or changed, which ops do in threads of TensorFlow's.
        pending: the exchanges of the run that are not through yet.
        given_up: whether the run has ended, perhaps by an error.
    """

    def __init__(self) -> None:
        self.exchanges: dict[str, int] = {}
        self.reached: dict[tuple[str, ...], set[str]] = {}
        self.own_rows = False
        self.rows: RowRange | None = None
        self.turn = threading.Condition()
        self.pending: list[int] = []
        self.given_up = False

    @contextlib.contextmanager
    def running(self, exchanges: Sequence[int], rows: RowRange | None) -> Iterator[None]:
        """Be in a run of the session.

        Args:
            exchanges: their numbers in the graph. rows: what the run works on; None: what every rank has, or nothing.
        """
        before, self.rows = self.rows, rows
        with self.turn:
            self.given_up = False
            self.pending[:] = exchanges
        try:
            yield
        finally:
            with self.turn:
                self.given_up = True
                self.pending.clear()
                self.turn.notify_all()
            self.rows = before


def of(graph: Any) -> GraphState:
    """Of this very graph."""
    return notes.of(graph, GraphState)


def of_session(graph: Any) -> GraphState:
    """Of the graph that a session runs: the outermost, where this one is a branch, or the body of a loop."""
    return of(graph_ops.within(graph)[-1])
