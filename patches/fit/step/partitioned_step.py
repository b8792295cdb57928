"""A model's step, traced as one rank traces it and rebuilt for the rows of this one; see `patches.partition`.

Every rank ends such a step with the state that one rank has: metrics, moving statistics, counters and logs are whole.
What cannot be rebuilt is run as it was traced, by every rank on the whole batch. That follows from the graph alone, so
the ranks decide alike; `how` says what this one has decided, for them to compare where they meet.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.checking import partitioner
from matex_tf.patches.common import log_once, model_state, row_slicing, xla
from matex_tf.patches.fit.step import first_step, one_rank_shapes
from matex_tf.patches.fit.step.leaves import Leaves, has_tensors_alone, spec_of
from matex_tf.patches.keras.weights import Sums, has_parts
from matex_tf.patches.partition import whole_part
from matex_tf.patches.partition.labels import CannotPartition
from matex_tf.patches.partition.lengths.any_length import MOST_SHAPES, Lengths, OfAnyLength, Span
from matex_tf.patches.partition.philox import Shared
from matex_tf.patches.partition.ranks import JOINS, Ranks
from matex_tf.patches.partition.step import Partitioned
from matex_tf.patches.recovery.whole_step import Values
from matex_tf.patches.shards.slots import Slots

T = TypeVar("T")


def applies(model: Any, data: Any = None) -> bool:
    """Whether the steps of a model are partitioned. All that it depends on is the same on every rank, and for all steps
    of a model: they change the same metrics.

    Args:
        data: its first batch. If it is ragged or sparse, a rank's rows of it are cut out, and what Keras has made of
            them is patched; the steps of a model with code of the script's own are computed whole instead. If variables
            lie in parts, they are rebuilt: every rank has the ids of all rows.
    """
    notes, now = model_state.of(model), _as_compiled(model)
    if notes.whole is None or notes.whole_as != now:
        notes.whole_as = now
        notes.whole = can(model) and (has_tensors_alone(data) or first_step.has_own_code(model) or has_parts(model))
    return notes.whole


def can(model: Any) -> bool:
    """Whether what a model computes may be partitioned, as it is compiled now; see docs/how-it-works.md."""
    return partitioner.is_on() and not any(_as_compiled(model))


def why_not(model: Any) -> str:
    """What stands in the way of partitioned steps of a model, in words."""
    return "it is compiled with run_eagerly=True" if model.run_eagerly else "docs/how-it-works.md lists what is not"


def _as_compiled(model: Any) -> tuple[bool, ...]:
    """Of a model and the `fit` that is under way: what stands in the way."""
    notes = model_state.of(model)
    apart = not all(part.partitioned for part in notes.fit_parts)
    return bool(model.run_eagerly), notes.row_choice is not None, apart


class PartitionedStep:
    """The step of a model for batches whose leaves have rows in the same places.

    Attributes:
        how: how the last batch was shared out, in words.
        slices, counting, slots, sums, by_xla: see `__init__`.
        ranks: what its exchanges are made by.
    """

    def __init__(
        self,
        model_step: Callable[[Any], Any],
        name: str,
        slices: Sequence[bool],
        counting: Callable[[], Any] | None,
        slots: Callable[[], Slots | None],
        sums: Callable[[], Sums | None] = lambda: None,
        joins: str = JOINS,
        by_xla: bool = False,
    ):
        """Args:
        model_step: of a batch.
        name: of the step, for lines.
        slices: for each leaf of a batch, whether its first axis runs over rows.
        counting: makes an op that is to run after the last exchange, see `whole_step`.
        slots, sums: give those of the model, once the step is traced.
        joins: the purpose for which rows are joined.
        by_xla: whether XLA compiles the step: whole on one rank, and what lies between exchanges here.
        """
        self.by_xla = by_xla and settings.current().shard != "weights"
        if by_xla and not self.by_xla:
            log_once.log("jit_compile is off: with --shard weights they are gathered between the ops of a step.")
        self.slots, self.sums, self.slices = slots, sums, slices
        self._model_step, self._name = model_step, name
        self.counting, self.ranks = counting, Ranks(joins)
        #: By the number of rows, or 0 for any: what was traced, and the counters of its draws.
        self._traced: dict[int, _Traces[tuple[Any, Shared]]] = {}
        self._promised = _Traces[Shared]()  # counters, by what iterators promise
        self._needs_number = False  # whether the step cannot be traced for any number of rows
        self._rebuilt: dict[str, _Rebuilt] = {}  # by the columns of a batch
        self._any = Lengths[_Rebuilt]()
        self._last: tuple[Any, _Rebuilt] | None = None
        self._told: set[str] = set()  # parts that are computed whole; they are other parts of batches of other shapes
        self.how = ""

    @functools.cached_property
    def _has_parts(self) -> bool:
        return self.slots() is not None

    def make(
        self,
        data: Any,
        built_with: one_rank_shapes.Rows,
        first: int | None = None,
        promise: one_rank_shapes.Promise | None = None,
    ) -> _Rebuilt:
        """What computes batches of these columns.

        Args:
            data: one of them, nested.
            built_with: for each leaf, the rows with which one rank would build layers; None for any number.
            first: the rows of the batch with which one rank has traced the step first; None if it was with any number.
            promise: what an iterator promises of its batches: one rank traces the step once for all of them; None if it
                traces each shape of a batch.
        """
        columns: Any = row_slicing.signature(data, self.slices)
        if not has_tensors_alone(data):
            columns = [str(spec_of(data, self.slices, self._has_parts))]
        if self._needs_number:
            columns = *columns, self._number(built_with)
        if self._last is not None and self._last[0] == columns and self._last[1].is_current():
            return self._last[1]
        made = self._rebuilt.get(str(columns))
        if made is None:
            spec = spec_of(data, self.slices, self._has_parts)
            made = self._any_length(spec, built_with, first, promise)
        if made is None:
            count = len(set(map(id, self._rebuilt.values())))
            why = "" if count < MOST_SHAPES else f"its batches have more than {MOST_SHAPES} different shapes"
            made = _Rebuilt(self, *self._made_of(spec, why, built_with, first, promise))
            if promise is not None and not made.made_of[3] and made.has_number(self._number(built_with)):
                made = self._for_number(made, built_with, first)
                columns = columns if made.made_of[3] == 0 else (*columns, made.made_of[3])
            made.tell(self._name, self._told)
        while not made.is_current():  # ranks have died since its variables were put in parts
            made.renew()
            self._rebuilt, self._last = {}, None  # others hold the former parts
            made = _Rebuilt(self, *made.made_of)
        self._rebuilt[str(columns)] = made
        self._last, self.how = (columns, made), made.how
        return made

    def _made_of(
        self,
        spec: Any,
        why: str,
        built_with: one_rank_shapes.Rows,
        first: int | None,
        promise: one_rank_shapes.Promise | None,
    ) -> tuple[Any, Any, str, int, Shared]:
        number, traced, states = self._trace(spec, built_with, first)
        if promise is not None:
            states = self._promised.of(promise.spec, lambda _: {})
        return traced, spec, why, number, states

    def _any_length(
        self,
        spec: Any,
        built_with: one_rank_shapes.Rows,
        first: int | None,
        promise: one_rank_shapes.Promise | None,
    ) -> _Rebuilt | None:
        """What computes such batches, and others whose tensors have other sizes; None if nothing does."""
        if not has_tensors_alone(spec) or self.by_xla or self._has_parts or self._needs_number:
            return None
        sizes = tuple(tuple(one.shape.as_list()) for one in Leaves(spec, self.slices).specs)

        def make(span: Span) -> _Rebuilt:
            shapes = iter(span.shapes)
            flat = [None if one is None else tf.TensorSpec(next(shapes), one.dtype) for one in tf.nest.flatten(spec)]
            given = self._made_of(tf.nest.pack_sequence_as(spec, flat), "", built_with, first, promise)
            if self._needs_number:  # as it has turned out now
                raise CannotPartition("it is traced for the number of rows")
            made = _Rebuilt(self, *given, span)
            if made.error is not None:
                raise made.error
            return made

        return self._any.step(sizes, make)

    def _for_number(self, made: _Rebuilt, built_with: one_rank_shapes.Rows, first: int | None) -> _Rebuilt:
        """What computes the same of the number of rows that each batch has, if less of it is whole then."""
        _, spec, why, _, states = made.made_of
        self._needs_number = True
        with contextlib.suppress(Exception):  # what was traced for any number of rows is right
            number, traced, _ = self._trace(spec, built_with, first)
            other = _Rebuilt(self, traced, spec, why, number, states)
            if other.whole(number) < made.whole(number):
                return other
        self._needs_number = False
        return made

    def _number(self, built_with: one_rank_shapes.Rows) -> int:
        """The rows that one rank would trace for; 0: any number."""
        numbers = {rows for rows, has in zip(built_with, self.slices, strict=True) if has}
        return numbers.pop() or 0 if len(numbers) == 1 else 0

    def _trace(self, spec: Any, built_with: one_rank_shapes.Rows, first: int | None) -> tuple[int, Any, Shared]:
        """For how many rows such batches were traced, what was, and the counters of its draws. A step is traced for any
        number of rows; one that needs the number, for that of one rank."""
        number = self._number(built_with) if self._needs_number else 0

        @tf.autograph.experimental.do_not_convert
        def step(given: Any) -> Any:
            with one_rank_shapes.tracing(given, built_with, first):
                return self._model_step(given)

        def traced(spec: Any) -> tuple[Any, Shared]:
            given = row_slicing.relaxed(spec, self.slices, number) if number else spec
            with world.alone():  # the script's Python sees one rank
                return Leaves(spec, self.slices).traced(step, given, self.by_xla), {}

        try:
            return number, *self._traced.setdefault(number, _Traces()).of(spec, traced)
        except Exception:
            if self._needs_number or not self._number(built_with):
                raise
            self._needs_number = True  # such as `tf.reshape(x, [x.shape[0], -1])`
            return self._trace(spec, built_with, first)

    def __call__(self, data: Any, share: row_slicing.RowRange) -> Any:
        """Run it on rows `share` of a batch; returns what one rank's step returns."""
        assert self._last is not None  # what was made last
        return self._last[1](data, share)

    @property
    def traced(self) -> Any:
        """What one rank computes of the last batch; None before the first."""
        return None if self._last is None else self._last[1].traced

    @property
    def changes(self) -> Values:
        """The variables that what was made last may change."""
        assert self._last is not None
        return self._last[1].changes


class _Rebuilt:
    """The step for batches of one spec.

    Attributes:
        made_of: what it was made of: `traced`, `spec`, `given_up`, `number` and `states` of `__init__`.
        traced: what one rank computes.
        why_whole: what keeps it from being shared out, in words; empty for nothing.
        error: why a step for a span cannot be made.
    """

    error: Exception | None = None

    def __init__(
        self,
        step: PartitionedStep,
        traced: Any,
        spec: Any,
        given_up: str,
        number: int,
        states: Shared,
        span: Span | None = None,
    ):
        """Args:
        step: that it is of.
        traced: what one rank computes.
        given_up: why it is not to be shared out, in words; empty for nothing.
        number: the rows that it was traced for; 0: any.
        states: the counters of its draws.
        span: batches of any length that it is for; None: it is for batches of one spec.
        """
        slots, sums = step.slots(), step.sums()
        self.made_of = traced, spec, given_up, number, states
        self.traced, self._slices, self.why_whole, self._slots = traced, step.slices, given_up, slots
        self._sums = sums if sums is not None and sums.handles else None
        self._partitioned: Partitioned | None = None  # stays so for a step that is computed whole
        self._leaves = leaves = Leaves(spec, step.slices)
        self._whole = functools.cache(lambda: Partitioned.whole(traced, len(leaves.rows), step.ranks, states))
        if not leaves.are_tensors and slots is None:
            self.why_whole = "its batches are ragged or sparse"
        if self.why_whole:
            return
        try:
            coded = settings.current().codec != "none"
            weights = [variable.handle for variable in traced.variables if coded and variable.trainable]
            handles = self._sums.handles if self._sums is not None else ()
            make = functools.partial(
                Partitioned,
                traced,
                leaves.rows,
                weights=weights,
                fixed=number,
                slots=slots,
                sums=handles,
                states=states,
            )
            if span is None:
                compiling = xla.compiled if step.by_xla else None
                made = make(step.ranks, leaves.columns, step.counting, xla=compiling)
            else:
                made = OfAnyLength(span, traced, make, step.ranks, step.counting)
            made.graph()
            self._partitioned = made
        except CannotPartition as error:
            self.why_whole, self.error = str(error), error
        except Exception as error:  # whatever it is, what was traced is right
            self.why_whole, self.error = whole_part.reason(error), error

    @functools.cached_property
    def changes(self) -> Values:
        """The variables that it may change."""
        return Values(self.traced if self._partitioned is None else self._partitioned.graph())

    def whole(self, rows: int) -> float:
        """How many numbers every rank computes of a batch of so many rows."""
        return math.inf if self._partitioned is None else whole_part.numbers(self._partitioned.plan, rows)

    def has_number(self, rows: int) -> bool:
        """Whether it takes so many rows for all of a batch; see `whole_part.has_number`."""
        return self._partitioned is not None and whole_part.has_number(self._partitioned.plan, rows)

    def tell(self, name: str, told: set[str]) -> None:
        """Say what every rank computes whole, all of the step or a part of it.

        Args:
            name: of the step. told: the parts that were named; completed.
        """
        if self._partitioned is None:
            log_once.log(whole_part.whole_line(name, self.why_whole))
            return
        part = whole_part.of(self._partitioned.plan)
        if part.is_worth_a_line and str(part) not in told:
            told.add(str(part))
            log_once.log(part.line(name))
        if line := self._slots.line() if self._slots is not None else "":
            log_once.log(line)

    def is_current(self) -> bool:
        """Whether it computes with variables in parts as the ranks that there are need them."""
        return self._slots is None or self._slots.are_current()

    def renew(self) -> None:
        """Have parts of variables for the ranks that there are. All ranks come here."""
        if self._slots is not None:
            self._slots.renew()

    @property
    def how(self) -> str:
        """How batches are shared out, in words."""
        return f"computed whole by every rank ({self.why_whole})" if self.why_whole else "split by rows"

    def __call__(self, data: Any, share: row_slicing.RowRange) -> Any:
        made = self._partitioned
        if made is not None and made.drops_row and share.total == 1:
            made = None
        if self._sums is not None:
            if made is not None and made.sums:
                self._sums.split()
            else:
                self._sums.join()
        if made is None:
            if self._slots is not None:
                self._slots.join()
            given, whole = self._leaves.whole(data, self._slices, share), self._whole()
            if whole is None:
                return self.traced(*given)
            return whole([leaf for leaf in tf.nest.flatten(given) if leaf is not None], 0, share.total, share.total)
        if self._slots is not None:
            self._slots.split()
        return made(self._leaves.mine(data, share), share.first, share.rows, share.total, share.low)


class _Traces(Generic[T]):
    """What was made for specs of batches, as TensorFlow keeps the traces of a function: one that covers a spec is for
    it too, and one for a spec of another size is for any size."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, T]] = []

    def of(self, spec: Any, make: Callable[[Any], T]) -> T:
        """What was made for batches of a spec. Args: make: makes it, for a spec."""
        for known, made in self._made:
            if _covers(known, spec):
                return made
        for known, _ in self._made:
            spec = _common(known, spec)
        self._made.append((spec, make(spec)))
        return self._made[-1][1]


def _covers(spec: Any, other: Any) -> bool:
    """Whether batches of the second spec are such of the first."""
    if row_slicing.nesting(spec) != row_slicing.nesting(other):
        return False
    pairs = zip(tf.nest.flatten(spec), tf.nest.flatten(other), strict=True)
    return all(one is two is None or (None not in (one, two) and two.is_subtype_of(one)) for one, two in pairs)


def _common(spec: Any, other: Any) -> Any:
    """The second spec, with any size where tensors of the first have another one."""
    if row_slicing.nesting(spec) != row_slicing.nesting(other):
        return other
    leaves = []
    for one, two in zip(tf.nest.flatten(spec), tf.nest.flatten(other), strict=True):
        both = isinstance(one, tf.TensorSpec) and isinstance(two, tf.TensorSpec)
        if both and one.dtype == two.dtype and one.shape.rank == two.shape.rank:
            sizes = [a if a == b else None for a, b in zip(one.shape, two.shape, strict=True)]
            two = tf.TensorSpec(sizes, two.dtype)
        leaves.append(two)
    return tf.nest.pack_sequence_as(other, leaves)
