"""`Session.run`: a run that trains is shared out among the ranks.

What it is fed is compared: arrays that all ranks have are shared out by rows; arrays that differ are rows of the rank's
own (from a `DataSet`, say), and together they are the batch. What it fetches is that of the whole batch: floating-point
scalars are averaged, weighted by rows, and rows are joined. A run that does not train is shared out only if its feeds
differ; else every rank computes it, on all that it is fed.

Relies on (TensorFlow 2.16 to 2.21): `run` and `__init__` of `tf.compat.v1.Session` and `InteractiveSession`, public.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.exchange import tf_op
from matex_tf.features.sessions import exchange_order, graph_state, variables
from matex_tf.patches.common import log_once, sharing_report, wrapping
from matex_tf.patches.common.active_flag import alone
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.sources import batch_ownership as guesses
from matex_tf.state import notes

_THREADS = 8  # for ops, some of which may wait for their turn


class _Begun:
    """Of a session: that it has trained."""


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    wrapping.wrap(module, "compat.v1.Session.run", _run)
    wrapping.wrap(module, "compat.v1.Session.__init__", _init)
    wrapping.wrap(module, "compat.v1.InteractiveSession.run", _run)
    wrapping.wrap(module, "compat.v1.InteractiveSession.__init__", _init)


def _init(wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
    if len(args) < 3:
        config = tf.compat.v1.ConfigProto()
        if kwargs.get("config") is not None:
            config.CopyFrom(kwargs["config"])
        config.inter_op_parallelism_threads = config.inter_op_parallelism_threads or _THREADS
        kwargs = {**kwargs, "config": config}
    return wrapped(*args, **kwargs)


def _run(wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
    if variables.by_itself or alone:
        return wrapped(*args, **kwargs)
    fetches, feeds, more, rest = wrapping.taken(args, kwargs, fetches=None, feed_dict=None)
    rest |= dict(zip(("options", "run_metadata"), more, strict=False))
    graph = session.graph
    ops = _reach(graph, fetches)
    numbers = exchange_order.of(graph, ops)
    if not numbers:
        feeds, part = _own_feeds(graph, feeds, training=False)
        result = wrapped(fetches, feeds, **rest)
        if part is not None:
            sharing_report.shared(training=False)
            return _of_all(graph, fetches, result, part)
        if any(variable.initializer.name in ops for variable in variables.of(graph)):
            variables.broadcast(session)
        return result
    return _train(wrapped, session, fetches, feeds, rest, numbers)


def _train(wrapped: Any, session: Any, fetches: Any, feeds: Any, rest: Any, numbers: list[int]) -> Any:
    """A run with exchanges in it.

    Raises:
        MatexError: with --reproducible.
    """
    if settings.current().reproducible:
        raise MatexError(
            "--reproducible is for fit, evaluate and train_on_batch, and this script trains in a session of TensorFlow "
            "1: leave out --reproducible."
        )
    ranks = world.current()
    sharing_report.uncovered("a session of TensorFlow 1")
    ranks.at(f"a training run of a session, of {len(feeds or {})} feeds")
    if not notes.has(session, _Begun):
        notes.put(session, _Begun())
        variables.broadcast(session)
    mine, part = _own_feeds(session.graph, feeds, training=True)
    if part is not None or not settings.current().shares_loops:
        sharing_report.shared()
    else:
        sharing_report.trained("session")
    with graph_state.of(session.graph).running(numbers, part), variables.by_itself(), tf_op.collecting():
        result = wrapped(fetches, mine, **rest)
    return result if part is None else _of_all(session.graph, fetches, result, part)


def _reach(graph: tf.Graph, fetches: Any) -> set[str]:
    """The names of the ops that a run of these fetches needs."""
    roots = [_op(graph, leaf) for leaf in _flat(fetches)]
    key = tuple(sorted({root.name for root in roots}))
    known = graph_state.of(graph).reached
    if key not in known:
        found: set[str] = set()
        pending = roots
        while pending:
            one = pending.pop()
            if one.name not in found:
                found.add(one.name)
                pending += [*(tensor.op for tensor in one.inputs), *one.control_inputs]
        known[key] = found
    return known[key]


def _flat(fetches: Any) -> Iterable[Any]:
    if isinstance(fetches, dict):
        for value in fetches.values():
            yield from _flat(value)
    elif isinstance(fetches, (list, tuple)):
        for value in fetches:
            yield from _flat(value)
    elif hasattr(fetches, "__attrs_attrs__"):
        for attribute in fetches.__attrs_attrs__:
            yield from _flat(getattr(fetches, attribute.name))
    elif isinstance(fetches, (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)):
        yield from tf.nest.flatten(fetches, expand_composites=True)
    elif fetches is not None:
        yield fetches


def _op(graph: tf.Graph, leaf: Any) -> Any:
    element = graph.as_graph_element(leaf, allow_tensor=True, allow_operation=True)
    return element if isinstance(element, tf.Operation) else element.op


def _own_feeds(graph: tf.Graph, feeds: Any, training: bool) -> tuple[Any, RowRange | None]:
    """What this rank feeds, and its part of the batch; None where nothing is shared out."""
    if not feeds or not settings.current().shares_loops:
        return feeds, None
    arrays = {key: value for key, value in feeds.items() if _may_have_rows(graph, key, value)}
    arrays = {key: np.asarray(value) for key, value in arrays.items()}
    if not arrays and not training:
        return feeds, None
    ranks, state = world.current(), graph_state.of(graph)
    counts = collections.Counter(len(array) for array in arrays.values())
    rows = max(counts, key=lambda count: (counts[count], count)) if counts else -1
    batch = {key: array for key, array in arrays.items() if len(array) == rows}
    fed = {_name(graph, key): array for key, array in batch.items()}
    found = guesses.look(fed, guesses.UNKNOWN, "compare what a session is fed", state.own_rows, rows)
    if not state.own_rows:
        guesses.tell(found, "what sessions are fed")
    if not found.own or (found.same and not training):
        if rows <= 0 or not training:
            return feeds, None
        part = RowRange.of(rows, ranks.rank, ranks.size)
        if not found.differs:
            log_once.log(f"sessions are fed the same on all {ranks.size} ranks: each trains on its rows of every feed")
        return {**feeds, **{key: array[part.low : part.high] for key, array in batch.items()}}, part
    state.own_rows = True
    rows = max(rows, 0)
    padded = {key: array if rows else np.zeros((1, *array.shape[1:]), array.dtype) for key, array in batch.items()}
    return {**feeds, **padded}, RowRange.own(found.counts, ranks.rank)


def _may_have_rows(graph: tf.Graph, key: Any, value: Any) -> bool:
    """Whether a feed may have any number of rows, and has some."""
    try:
        shape = graph.as_graph_element(key, allow_operation=False).shape
    except (TypeError, ValueError, KeyError):
        return False
    if not _open(shape):
        return False
    return not isinstance(value, (tf.compat.v1.SparseTensorValue, str, bytes)) and np.ndim(value) > 0


def _open(shape: tf.TensorShape) -> bool:
    """Whether the first dimension may be any."""
    return shape.rank is None or (shape.rank > 0 and shape.as_list()[0] is None)


def _of_all(graph: tf.Graph, fetches: Any, result: Any, part: RowRange) -> Any:
    """What was fetched, of the whole batch."""
    leaves: list[tuple[Any, Any]] = []

    def visit(fetch: Any, value: Any) -> Any:
        if isinstance(fetch, dict):
            return type(value)((key, visit(fetch[key], value[key])) for key in fetch)
        if isinstance(fetch, (list, tuple)):
            parts = [visit(one, other) for one, other in zip(fetch, value, strict=True)]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        leaves.append((fetch, value))
        return len(leaves) - 1

    places = visit(fetches, result)
    named = [(_name(graph, fetch), value) for fetch, value in leaves]
    said = {name: _said(graph, name, value, part) for name, value in named if name}
    # By name: a hook that goes by the clock may fetch something on one rank that it does not on another.
    everyone = world.current().allgather((part.rows, said), "put together what a session fetched")
    return _fill(places, [_whole(name, value, everyone) for name, value in named])


def _fill(places: Any, whole: list[Any]) -> Any:
    if isinstance(places, dict):
        return type(places)((key, _fill(value, whole)) for key, value in places.items())
    if isinstance(places, (list, tuple)):
        parts = [_fill(value, whole) for value in places]
        return type(places)(*parts) if hasattr(places, "_fields") else type(places)(parts)
    return whole[places]


def _name(graph: tf.Graph, fetch: Any) -> str:
    """The name of a tensor; empty for everything else."""
    try:
        return str(graph.as_graph_element(fetch, allow_operation=False).name)
    except (TypeError, ValueError, KeyError):
        return ""


def _said(graph: tf.Graph, name: str, value: Any, part: RowRange) -> Any:
    """What a rank tells of one fetch: a number to average, rows to join, or None."""
    if isinstance(value, np.ndarray) and value.ndim:
        of_rows = _open(graph.get_tensor_by_name(name).shape)
        return value[: part.rows] if of_rows and len(value) == part.high - part.low else None
    return float(value) if isinstance(value, (np.floating, float)) else None


def _whole(name: str, own: Any, everyone: list[tuple[int, dict[str, Any]]]) -> Any:
    parts = [(rows, said.get(name)) for rows, said in everyone if rows]
    if not parts or any(part is None for _, part in parts):
        return own
    if isinstance(parts[0][1], float):
        weights, numbers = zip(*parts, strict=True)
        return type(own)(np.average(numbers, weights=weights))
    return np.concatenate([rows for _, rows in parts])
