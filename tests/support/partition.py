"""Ranks that are threads of one process, for the partitioner: what a step gives on each of them, beside one rank.

They exchange by queues of TensorFlow, whose ops wait without holding a thread, so that any number of ranks goes with
any number of threads. A rank that fails, or a time limit, closes the queues: then all ranks end.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from matex_tf.patches.partition import shards
from matex_tf.patches.partition.lengths import any_length
from matex_tf.patches.partition.step import Partitioned

SECONDS = 120


class Meeting:
    """The queues between some ranks, one for each pair.

    Attributes:
        size: the number of ranks.
        queues: by source and destination. What is made for no rank in particular has sources and destinations of its
            own, the last ones; see `as_rank`.
    """

    def __init__(self, size: int):
        self.size = size
        self.queues = [
            [tf.queue.FIFOQueue(10_000, [tf.string, tf.string]) for _ in range(size + 1)] for _ in range(size + 1)
        ]

    def as_rank(self, captured: Sequence[Any], rank: int) -> list[Any]:
        """What a graph that was made for no rank captures, for a rank."""
        queues, none = self.queues, self.size
        places = {id(queues[none][other].queue_ref): queues[rank][other].queue_ref for other in range(self.size)}
        places |= {id(queues[other][none].queue_ref): queues[other][rank].queue_ref for other in range(self.size)}
        return [places.get(id(tensor), tensor) for tensor in captured]

    def abort(self) -> None:
        """End what waits, now and later."""
        for queue in (queue for row in self.queues for queue in row):
            queue.close(cancel_pending_enqueues=True)

    def is_empty(self) -> bool:
        """Whether every message has been read."""
        return all(int(queue.size()) == 0 for row in self.queues for queue in row)


class ThreadExchange:
    """The exchange of one rank. See `matex_tf.patches.partition.build.Exchange`.

    Attributes:
        calls: the number of exchanges in the graphs.
        largest: of the values in parts that are gathered, in elements.
    """

    def __init__(self, meeting: Meeting, rank: int):
        self.meeting, self.rank, self.calls, self.largest = meeting, rank, 0, 0

    def sum(self, tensors: Sequence[Any], names: Sequence[str], coded: bool = False) -> list[Any]:
        return [tf.add_n(parts) for parts in self._meet("sum", tensors, names)]

    def gather(self, tensors: Sequence[Any], names: Sequence[str]) -> list[Any]:
        return [tf.concat(parts, 0) for parts in self._meet("gather", tensors, names)]

    def scatter(self, tensors: Sequence[Any], names: Sequence[str]) -> list[Any]:
        sums = self.sum(tensors, names)
        for total, tensor in zip(sums, tensors, strict=True):
            total.set_shape(tensor.shape)
        return [self.part(total) for total in sums]

    def join(self, parts: Sequence[Any], sizes: Sequence[int], names: Sequence[str]) -> list[Any]:
        self.largest = max(self.largest, *sizes)
        return self.gather(parts, names)

    def send(self, tensors: Sequence[Any], counts: Any, name: str) -> tuple[list[Any], Any]:
        *joined, every = self._meet("send", [*tensors, counts], [name])
        firsts = [tf.reduce_sum(one[: self.rank]) for one in every]
        mine = [one[self.rank] for one in every]
        pieces = [
            tf.concat([part[a : a + n] for part, a, n in zip(parts, firsts, mine, strict=True)], 0) for parts in joined
        ]
        return pieces, tf.stack(mine)

    def part(self, whole: Any) -> Any:
        return shards.part(whole, self.rank, self.meeting.size)

    def span(self, size: int) -> tuple[int, int]:
        return shards.span(size, self.rank, self.meeting.size)

    def ends(self, size: int) -> list[int]:
        return [shards.span(size, rank, self.meeting.size)[1] for rank in range(self.meeting.size)]

    def _meet(self, how: str, tensors: Sequence[Any], names: Sequence[str]) -> list[list[Any]]:
        """The tensors of each rank, in the order of ranks, for each tensor."""
        self.calls += 1
        ranks, what = (
            range(self.meeting.size),
            f"{how} {[re.sub(r'[_:]*[0-9]+', '', name) for name in names]}",
        )  # Keras counts layers
        mine = tf.stack([tf.io.serialize_tensor(tensor) for tensor in tensors])
        packed = tf.io.serialize_tensor(mine)
        sent = [self.meeting.queues[self.rank][other].enqueue([what, packed]) for other in ranks]
        every = []
        with tf.control_dependencies(sent):
            for other in ranks:
                name, values = self.meeting.queues[other][self.rank].dequeue()
                check = tf.debugging.assert_equal(name, what, f"not where rank {other} is")
                with tf.control_dependencies([check]):
                    every.append(tf.io.parse_tensor(values, tf.string))
        parsed = []
        for place, tensor in enumerate(tensors):
            parts = [tf.io.parse_tensor(values[place], tensor.dtype) for values in every]
            for part in parts:
                part.set_shape([None] * tensor.shape.rank if tensor.shape.rank is not None else None)
            parsed.append(parts)
        return parsed


def on_threads(size: int, meeting: Meeting, work: Callable[[int], Any]) -> list[Any]:
    """What `work(rank)` returns on each rank; the first exception of a rank is raised."""
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)
            meeting.abort()

    limit = threading.Timer(SECONDS, meeting.abort)
    limit.start()
    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    limit.cancel()
    if errors:
        raise errors[0]
    return results


def cut(rows: int, size: int, generator: Any) -> list[int]:
    """Where the rows of each rank begin, and the end: at random places. A rank may have none."""
    return [0, *sorted(int(place) for place in generator.randint(0, rows + 1, size - 1)), rows]


def _columns(traced: Any, rows: Sequence[bool]) -> list[Any]:
    """The shapes of the tensors of a batch, with any number of rows."""
    shapes = [tensor.shape for tensor, _ in zip(traced.inputs, rows, strict=False)]
    return [tf.TensorShape([None, *shape[1:]]) if has else shape for shape, has in zip(shapes, rows, strict=True)]


class Copies:
    """The variables that a traced function captures, once more for a rank: it starts from their values."""

    def __init__(self, traced: Any):
        self._of = {id(handle): _copy(handle) for handle in traced.captured_inputs if _is_of_a_variable(handle)}

    def put(self, captured: Sequence[Any]) -> list[Any]:
        """What a graph captures, with the copies in place of the variables."""
        return [self._of[id(handle)].handle if id(handle) in self._of else handle for handle in captured]

    def numpy(self, variable: Any) -> Any:
        """What the rank has for a variable of TensorFlow or Keras."""
        variable = getattr(variable, "value", variable) if isinstance(variable, keras.Variable) else variable
        return self._of.get(id(variable.handle), variable).numpy()


def _is_of_a_variable(captured: Any) -> bool:
    return captured.dtype == tf.resource and bool(captured._handle_data and captured._handle_data.shape_and_type)


def _copy(handle: Any) -> Any:
    (kind,) = handle._handle_data.shape_and_type
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.as_dtype(kind.dtype))
    return tf.Variable(value, shape=tf.TensorShape(kind.shape))


class Ranks:
    """One step on several ranks.

    Attributes:
        traced, steps: one that does for all ranks, or that of each.
        plan: how the first one is shared out.
    """

    def __init__(
        self,
        size: int,
        trace: Callable[[int], Any],
        rows: Sequence[bool],
        own: bool = False,
        fixed: int = 0,
        slots: Sequence[Any] = (),
        columns: Sequence[Any] | None = None,
        lengths: Sequence[Any] = (),
        stride: int = 1,
    ):
        """Args:
        trace: gives the concrete function of a rank.
        rows: for each tensor of it, whether it has the rows of the batch.
        own: each rank has a function of its own, with its variables: for ops with a state, which a graph keeps. Else
            `trace` is called once, and ranks run one graph, each with copies of the variables as they are now: tracing
            is most of what a test costs.
        fixed: the number of rows that it is traced for; 0: any number.
        slots: of each rank, which variables lie in parts, see `shards.Slots`; then each has a function of its own.
        columns: see `Partitioned`; None: as they were traced.
        lengths: shapes of batches, each as `columns`: the step is one for any length then, that differs by a multiple
            of `stride` from that of the last of them.
        """
        self.size, self.rows, self._own = size, rows, own or bool(slots)
        self.meeting = Meeting(size)
        ranks = range(size) if self._own else [size]
        self.traced = [trace(rank) for rank in ranks]
        self._copies = [] if self._own else [Copies(self.traced[0]) for _ in range(size)]
        self.exchanges = [ThreadExchange(self.meeting, rank) for rank in ranks]
        if lengths:
            (one,), (exchange,) = self.traced, self.exchanges
            span = any_length.Span(
                [tuple(tuple(shape.as_list()) for shape in shapes) for shapes in lengths], True, stride
            )
            make = functools.partial(Partitioned, one, rows)
            self.steps: list[Partitioned] = [any_length.OfAnyLength(span, one, make, exchange)]
        else:
            self.steps = [
                Partitioned(
                    one,
                    rows,
                    exchange,
                    columns or _columns(one, rows),
                    fixed=fixed,
                    slots=slots[place] if slots else None,
                )
                for place, (one, exchange) in enumerate(zip(self.traced, self.exchanges, strict=True))
            ]
        self.plan = self.steps[0].plan

    def numpy(self, variable: Any, rank: int) -> Any:
        """What a rank has for a variable that the traced function captures, if ranks run one graph."""
        return self._copies[rank].numpy(variable)

    def whole(self) -> dict[str, int]:
        """How many ops of each type every rank computes whole though there are rows."""
        counts: dict[str, int] = {}
        for op in self.plan.computed_whole:
            counts[op.type] = counts.get(op.type, 0) + 1
        return counts

    def __call__(self, batch: Sequence[Any], bounds: Sequence[int]) -> list[Any]:
        """What each rank gives for a batch that is cut at these places, flat."""
        empty = [bounds[rank] == bounds[rank + 1] for rank in range(self.size)]
        graphs = [self.steps[rank if self._own else 0].graph(empty=empty[rank]) for rank in range(self.size)]

        def work(rank: int) -> Any:
            low, high = bounds[rank], bounds[rank + 1]
            given = [value[low:high] if has else value for value, has in zip(batch, self.rows, strict=True)]
            given.append(tf.constant([0, low, high - low, bounds[-1]]))
            graph = graphs[rank]
            if self._own:
                return [tensor.numpy() for tensor in graph(*given)]
            captured = self.meeting.as_rank(self._copies[rank].put(graph.captured_inputs), rank)
            return [tensor.numpy() for tensor in graph._call_flat(given, captured)]

        results = on_threads(self.size, self.meeting, work)
        assert self.meeting.is_empty()
        return results
