"""One trace of a compiled function of the script's own, rebuilt for a rank's rows; and its calls.

Relies on (TensorFlow 2.16 to 2.21, private): `bind`, `unpack_inputs`, `pack_output` and `output` of the
`function_type` of a `ConcreteFunction`, and its `_call_flat`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from matex_tf.core import world
from matex_tf.core.graph_ops import ops_of
from matex_tf.exchange import tf_op
from matex_tf.patches.common import log_once, model_state, row_slicing, sharing_report
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.loops import iteration, metric_results, position, replica_sync
from matex_tf.patches.partition import whole_part
from matex_tf.patches.partition.build import Exchange
from matex_tf.patches.partition.lengths.any_length import MOST_SHAPES, Lengths, OfAnyLength, Span
from matex_tf.patches.partition.philox import Shared
from matex_tf.patches.partition.ranks import Ranks
from matex_tf.patches.partition.rules import draws
from matex_tf.patches.partition.shapes import inference
from matex_tf.patches.partition.shapes.shaped import HANDLES
from matex_tf.patches.partition.step import Partitioned
from matex_tf.patches.recovery import whole_step
from matex_tf.patches.recovery.whole_step import Values
from matex_tf.patches.shards import variable as in_parts
from matex_tf.state import run_state
from matex_tf.watching.meter import Meter

#: Rows of a batch that is known by closure; what has fewer may be anything.
_FEWEST = 32
#: Beginnings of the types of ops that change a variable.
_CHANGES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceKeras")


class Traced:
    """One trace of a function.

    Attributes:
        takes: for each batch that it takes by itself, the place of the iterator among its inputs, and the shapes of the
            tensors as they are traced.
        name: of the function.
        trains: whether it takes gradients and changes variables.
    """

    def __init__(self, concrete: Any, name: str, xla: Any, differentiates: bool):
        """Args: xla: of the function, if it is for XLA. differentiates: whether it takes gradients by variables."""
        self._concrete, self.name, self._xla = concrete, name, xla
        self.takes = inference.iterators(concrete.graph)
        changes = _changes(concrete.graph)
        self._trains, self._gives_gradients = changes or differentiates, differentiates and not changes
        self.trains = changes and differentiates
        self._made: dict[Any, Partitioned | None] = {}
        self._any: dict[Any, Lengths[Partitioned]] = {}  # by what else steps are made for
        self._states: Shared = {}
        self._begun = self._is_whole = False
        self._rows_by_closure: int | None = None
        self._counting = whole_step.counting(self)
        model_state.of(self).begin = False
        self._changes: dict[int, Values] = {}

    def inputs(self, args: Any, kwargs: Any) -> list[Any]:
        """The tensors among `args` and `kwargs`, flat."""
        kind = self._concrete.function_type
        return list(kind.unpack_inputs(kind.bind(*args, **kwargs)))

    def rows_of_all(self, flat: Sequence[Any]) -> int:
        """The rows of the batch that it gets, or knows by closure, if it trains and every rank has the same; 0 for
        none. All ranks come here that call it."""
        if not self.trains:
            return 0
        known = [tensor for tensor in flat if tensor.dtype not in HANDLES]
        if rows := _rows_of_most(known):
            return rows if self._is_same(known) else 0
        if self._rows_by_closure is None:
            rows = _rows_of_most(constants := self._constants)
            self._rows_by_closure = rows if rows >= _FEWEST and self._is_same(constants) else 0
        return self._rows_by_closure

    @property
    def may_be_alike(self) -> bool:
        """Whether it gives the same on every rank if these get the same, and not without variables: what trains alone
        on what it gets may get something else on each rank."""
        return bool(self._concrete.variables) and not self.trains

    @property
    def _constants(self) -> list[Any]:
        return [tensor for tensor in self._concrete.captured_inputs if tensor.dtype not in HANDLES]

    def _is_same(self, tensors: Sequence[Any]) -> bool:
        held = world.current().compare(row_slicing.checksum(tensors), f"compare what {self.name} gets")
        return len(set(held)) == 1

    def is_apart(self, flat: Sequence[Any]) -> bool:
        """Whether ranks have something of their own that it works on: states of metrics, or rows."""
        own = any(one.is_own for one in self.iterators(flat))
        return own or metric_results.any_shared(self._concrete.variables)

    def iterators(self, flat: Sequence[Any]) -> list[Any]:
        """The iterators of which it takes batches."""
        inputs = [*flat, *self._concrete.captured_inputs]
        return [iteration.of_resource(inputs[place]) for place, _ in self.takes]

    def __call__(self, flat: Sequence[Any], loops: Sequence[Any], calls: Any, rows: int) -> Any:
        """Call it on whole values of what it gets.

        Args:
            calls: of `World.growth`, lets ranks come; None where none can.
            rows: of the batch among these values, of no loop; 0: none.
        """
        in_parts.join(self._concrete.variables)
        if self._trains and not self._begun:
            self._begun = True
            places = {id(tensor): place for place, tensor in enumerate(self._concrete.captured_inputs)}
            known = [one for one in self._concrete.variables if id(one.handle) in places]
            replica_sync.begin(sorted(known, key=lambda one: places[id(one.handle)]))
        batches = [iterator.take_for_step() for iterator in self.iterators(flat)]
        totals = {loop.whole_rows for loop in loops} | ({rows} if rows else set())
        total = batches[0].total if batches else _rows_among([*flat, *self._concrete.captured_inputs], totals)
        if not batches and not (self._trains and total):
            if loops and not total:
                self._tell_whole("nothing that it gets is as long as the batch")
            run = None
        else:
            run = self._run(flat, batches, total)
        if run is None and calls is None:
            return self._whole(flat)
        if run is None:
            compute, given = functools.partial(self._whole_flat, flat), flat
            self._is_whole = True
        else:
            for loop in loops:
                loop.partitioned |= loop.whole_rows == total
            if rows:
                run_state.current().part(Meter).count(rows, "loop")
                log_once.log(
                    f"each batch that {self.name} gets is split among {world.current().size} ranks (--shard-loops)"
                )
            if self._gives_gradients:
                position.give_whole_gradients()
            sharing_report.held_whole("a loop of the script's own")
            sharing_report.shared()
            compute, given = functools.partial(self._split, run), run.leaves
        outputs = (
            compute()
            if calls is None
            else calls.call(self, given, compute, _elsewhere, run is not None or self._trains)
        )
        return self._concrete.function_type.pack_output(outputs)

    def _split(self, run: _Run) -> Any:
        """What it gives, flat, of the rank's rows."""
        guard = world.current().guard
        if guard is None:
            return run(None, run.share)
        return whole_step.step(self, lambda: (None, run.share), run, guard)

    def _run(self, flat: Sequence[Any], batches: Sequence[Any], total: int) -> _Run | None:
        """The function on a batch, with some of its rows or all; None if every rank is to compute all of it."""
        own = next((one.share for one in batches if one.share is not None and one.share.total == total), None)
        mask, leaves = [_has_rows(tensor, total) for tensor in flat], list(flat)
        if own is not None:  # the rank's rows alone are there of a batch
            end = own.first + own.high - own.low
            leaves = [leaf[own.first : end] if has else leaf for leaf, has in zip(flat, mask, strict=True)]
        for batch in batches:
            mask += [has and batch.total == total for has in batch.slices]
            leaves += batch.whole() if batch.total != total else batch.tensors if own is None else batch.rows_of(own)
        counts = [len(batch.tensors) for batch in batches]
        step = self._partitioned(leaves, mask, counts, total)
        if step is not None and step.drops_row and total == 1:
            step = None
        if step is None and not batches:
            return None
        if step is None:
            own, leaves = None, [*flat, *(leaf for batch in batches for leaf in batch.whole())]
            mask = [False] * len(mask)
            step = self._partitioned(leaves, mask, counts, total)
            assert step is not None
        return _Run(self, lambda: self._partitioned(leaves, mask, counts, total), leaves, total, own)

    def changes(self, step: Partitioned) -> Values:
        """The variables that it may change, where it is made so."""
        if id(step) not in self._changes:
            self._changes[id(step)] = Values(step.graph())
        return self._changes[id(step)]

    def _partitioned(
        self, leaves: Sequence[Any], mask: Sequence[bool], counts: Sequence[int], total: int
    ) -> Partitioned | None:
        """The function, rebuilt for batches of these shapes; None if every rank is to compute all of it."""
        traced = [tensor.shape for tensor in self._concrete.inputs[: len(leaves) - sum(counts)]]
        traced += [shape for _, batch in self.takes for shape in batch]
        held = [not any(mask) and not counts and _has_rows(one, total) for one in self._concrete.captured_inputs]
        is_fixed = any(held) or any(has and shape[0] is not None for has, shape in zip(mask, traced, strict=True))
        fixed = total if is_fixed else 0
        given = [
            tf.TensorShape([None, *leaf.shape[1:]]) if has else leaf.shape
            for leaf, has in zip(leaves, mask, strict=True)
        ]
        few = total < world.current().size  # some ranks have no rows, which takes a graph of its own
        key = fixed, few, any(mask) or any(held), tuple(tuple(shape.as_list()) for shape in given)
        if key not in self._made:
            args = len(given) - sum(counts)
            make = functools.partial(self._partitioned_for, args, counts, mask, fixed, held)
            if any(mask) or not counts:
                why = "" if any(mask) or any(held) else "nothing that it gets is as long as the batch"
                self._made[key] = self._any_length(given, mask, fixed, few, make) or self._rebuilt(
                    given, why, few, make
                )
            else:
                self._made[key] = make(Ranks(), given, self._counting, xla=self._xla)
        return self._made[key]

    def _partitioned_for(
        self,
        args: int,
        counts: Sequence[int],
        mask: Sequence[bool],
        fixed: int,
        held: Sequence[bool],
        exchange: Exchange,
        columns: Sequence[Any],
        after_last: Any = None,
        **more: Any,
    ) -> Partitioned:
        """The function for tensors of these shapes: those of its arguments, then of each batch that it takes."""
        rest = iter(columns[args:])
        taken = [list(itertools.islice(rest, count)) for count in counts]
        more |= {"taken": taken, "fixed": fixed, "states": self._states, "held": held}
        return Partitioned(self._concrete, mask, exchange, columns[:args], after_last, **more)

    def _any_length(
        self, given: Sequence[Any], mask: Sequence[bool], fixed: int, few: bool, make: Any
    ) -> Partitioned | None:
        """The function for batches of these shapes and of others; None if there is none."""
        if self._xla or not any(mask):
            return None

        def of_span(span: Span) -> Partitioned:
            return self._checked(OfAnyLength(span, self._concrete, make, Ranks(), self._counting), few)

        lengths = self._any.setdefault((fixed, few, *mask), Lengths())
        return lengths.step(tuple(tuple(shape.as_list()) for shape in given), of_span)

    def _rebuilt(self, given: Sequence[Any], why: str, few: bool, make: Any) -> Partitioned | None:
        """The function for batches of these shapes; None if every rank is to compute all of it, with a line that says
        why."""
        if len(set(map(id, self._made.values()))) >= MOST_SHAPES:
            why = why or f"its batches have more than {MOST_SHAPES} different shapes"
        if not why:
            try:
                return self._checked(make(Ranks(), given, self._counting, xla=self._xla), few)
            except Exception as error:  # whatever it is, what was traced is right
                why = whole_part.reason(error)
        self._tell_whole(why)
        return None

    def _checked(self, made: Partitioned, few: bool) -> Partitioned:
        """It can be made for the rows that ranks have, and what is computed whole is said."""
        for empty in {False, few}:
            made.graph(empty)
        part = whole_part.of(made.plan)
        if part.is_worth_a_line:
            log_once.log(part.line(self.name))
        return made

    @functools.cached_property
    def _of_whole_batches(self) -> Partitioned | None:
        return Partitioned.whole(
            self._concrete, len(self._concrete.inputs) - len(self._concrete.captured_inputs), Ranks(), self._states
        )

    def _tell_whole(self, why: str) -> None:
        if self._trains:
            log_once.log(whole_part.whole_line(self.name, f"{why} (docs/loops.md)"))

    def _whole(self, flat: Sequence[Any]) -> Any:
        """What one rank does."""
        if self._of_whole_batches is None:
            return self._concrete._call_flat(list(flat), self._concrete.captured_inputs)
        return self._concrete.function_type.pack_output(self._whole_flat(flat))

    def _whole_flat(self, flat: Sequence[Any]) -> Any:
        """What it gives, flat, as one rank does it."""
        if self._of_whole_batches is None:
            return self._concrete.function_type.output.to_tensors(self._whole(flat))
        return self._of_whole_batches.flat(list(flat), 0, 1, 1)

    @functools.cached_property
    def obstacle(self) -> str:
        """See `obstacle_of`."""
        return obstacle_of(self._concrete.graph)

    @property
    def version(self) -> int:
        """Another one once `changed` may give more."""
        return len(self._made) + self._is_whole

    def changed(self) -> list[tuple[Any, Any, str]]:
        """The variables that it may change: handle, dtype and name of each, in the same order on every rank."""
        made = [self.changes(step) for step in self._made.values() if step is not None]
        if self._is_whole:
            made.append(self._changed_whole)
        names = {id(variable.handle): variable.name for variable in self._concrete.variables}
        return whole_step.changed_by(made, names, "a counter of draws")

    @functools.cached_property
    def _changed_whole(self) -> Values:
        return Values(self._concrete if self._of_whole_batches is None else self._of_whole_batches.graph())


class _Run:
    """A partitioned function on one batch; again among fewer ranks, where one has died in it, see `whole_step`.

    Attributes:
        leaves: see `__init__`.
    """

    def __init__(
        self,
        of: Traced,
        make: Callable[[], Partitioned | None],
        leaves: Sequence[Any],
        total: int,
        own: RowRange | None,
    ):
        """Args:
        of: the trace.
        make: gives the function for the ranks that there are.
        leaves: the tensors of the batch.
        total: its rows.
        own: those that the tensors hold; None: all.
        """
        self._of, self._make, self.leaves, self._total, self._own = of, make, leaves, total, own

    @property
    def share(self) -> RowRange:
        """The rows of this rank."""
        ranks = world.current()
        return self._own or RowRange.of(self._total, ranks.rank, ranks.size)

    @property
    def _step(self) -> Partitioned:
        step = self._make()
        assert step is not None
        return step

    def changes(self, data: Any) -> Values:
        """See `whole_step.StepRunner`."""
        return self._of.changes(self._step)

    def __call__(self, data: Any, share: RowRange) -> Any:
        """What the function gives, flat and whole. Args: data: nothing. share: the rows of this rank."""
        low = 0 if self._own else share.first
        with contextlib.nullcontext() if world.current().guard is None else tf_op.collecting():
            return self._step.flat(self.leaves, share.first, share.rows, share.total, low)

    def finish(self) -> None:
        """See `whole_step.StepRunner`."""


def _elsewhere() -> str:
    """What trains besides compiled steps, in words; empty for nothing."""
    return "its script also takes gradients, or feeds metrics, outside of compiled steps" if position.touches() else ""


def _rows_among(flat: Sequence[Any], totals: set[int]) -> int:
    """The rows of the batch that is among what a function gets; 0 without any."""
    return next((total for tensor in flat for total in totals if _has_rows(tensor, total)), 0)


def _rows_of_most(tensors: Sequence[Any]) -> int:
    """The number of rows that tensors with the most elements have; 0 if none has more than one."""
    sizes: collections.Counter[int] = collections.Counter()
    for one in tensors:
        if one.shape.rank and (one.shape[0] or 0) > 1:
            sizes[int(one.shape[0])] += one.shape.num_elements() or 0
    return sizes.most_common(1)[0][0] if sizes else 0


def _has_rows(tensor: Any, total: int) -> bool:
    """Whether the first axis of a tensor is taken to run over the rows of a batch: it is as long, so it can be cut like
    them, whatever it is."""
    return bool(tensor.shape.rank) and tensor.dtype not in HANDLES and tensor.shape[0] == total


def obstacle_of(graph: Any) -> str:
    """What a graph does that depends on more than variables and what it gets, in words; else empty."""
    for node in ops_of(graph):
        if node.op in ("PyFunc", "PyFuncStateless", "EagerPyFunc"):
            return "runs Python code, which a rank that comes would not have run"
        if node.op.startswith(("LookupTable", "Queue")) and "Find" not in node.op and "Size" not in node.op:
            return f"changes a table or a queue ({node.op})"
        if "seed2" in node.attr and node.op not in draws.STATEFUL:
            return f"draws by {node.op}, whose state nobody knows"
    return ""


def _changes(graph: Any) -> bool:
    """Whether a graph changes variables."""
    return any(node.op.startswith(_CHANGES) for node in ops_of(graph))
