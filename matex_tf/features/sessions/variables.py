"""Variables of a session: rank 0's values on every rank, after they are initialized or restored."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.patches.common.active_flag import ActiveFlag

#: While this package, or what it waits for, uses a session: runs are the rank's own.
by_itself = ActiveFlag("by itself")


def of(graph: tf.Graph) -> list[Any]:
    """The global variables of a graph, in the order in which they were made."""
    return list(graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES))


def broadcast(session: Any) -> None:
    """Give every rank the values that rank 0 has. All ranks come here.

    Raises:
        RanksDisagree: the graphs have other variables.
    """
    ranks = world.current()
    variables = of(session.graph)
    ranks.barrier("share the variables of a session", [f"{v.name} {v.dtype.name} {v.shape}" for v in variables])
    values: list[Any] = _values(session, variables) if ranks.rank == 0 else []
    known = ranks.broadcast(
        [None if value is None else (value.shape, value.dtype) for value in values], "share the shapes of variables"
    )
    with by_itself():
        for place, (variable, kind) in enumerate(zip(variables, known, strict=True)):
            if kind is None:
                continue
            if kind[1].hasobject:
                value = ranks.broadcast(values[place] if ranks.rank == 0 else None, "share a variable of text")
            else:
                value = ranks.broadcast_array(values[place] if ranks.rank == 0 else np.empty(*kind))
            if ranks.rank:
                session.run(variable.initializer, {variable.initializer.inputs[1]: value})


def _values(session: Any, variables: list[Any]) -> list[np.ndarray | None]:
    """Their values; None for one that is not initialized."""
    with by_itself():
        with contextlib.suppress(tf.errors.FailedPreconditionError):
            return [np.asarray(value) for value in session.run(variables)]
        values: list[np.ndarray | None] = []
        for variable in variables:
            try:
                values.append(np.asarray(session.run(variable)))
            except tf.errors.FailedPreconditionError:
                values.append(None)
    return values
