"""Pipelines that a script iterates by itself: `for batch in dataset`, `iter(dataset)`, both inside tf.function as well.

Eager loops go through a `Walk`. A loop inside a tf.function is traced once, so there every batch is shared out, in the
graph; an iterator that is passed to a tf.function knows that it is one to share out.

Relies on (TensorFlow 2.16 to 2.21, private): `tensorflow.python.data.ops.iterator_ops.OwnedIterator`, its
`_next_internal`, `get_next_as_optional`, `_dataset` and `_type_spec`, `IteratorSpec`, its `_from_components` and
`_to_components`;
`tensorflow.python.autograph.operators.control_flow.for_loop_registry`. Public: `tf.data.Dataset.__iter__`.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import weakref
from types import ModuleType
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops as _iterators

from matex_tf.core import row_partition, world
from matex_tf.errors import MatexError
from matex_tf.exchange import tf_op
from matex_tf.patches.checking import one_rank
from matex_tf.patches.common import batch_share, log_once, row_slicing, sharing_report, under_way, wrapping
from matex_tf.patches.loops import batched, divided, first_step, position, shared_loop
from matex_tf.patches.loops.compiled import one_rank_trace
from matex_tf.patches.loops.compiled.taken import taken_once
from matex_tf.patches.sources import shuffle_orders
from matex_tf.state import notes


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    batch_share.look_also(position.part)
    row_partition.listen(position.given)
    for name in ("_next_internal", "get_next_as_optional", "_type_spec"):
        wrapping.require(_iterators, f"OwnedIterator.{name}")
    wrapping.method(module, "data.Dataset.__iter__", _iterate)
    control_flow = importlib.import_module("tensorflow.python.autograph.operators.control_flow")
    registry = wrapping.require(control_flow, "for_loop_registry._registry")
    original = registry[module.data.Dataset]

    def loop_over_dataset(dataset: Any, extra_test: Any, body: Any, *rest: Any, **options: Any) -> Any:
        """AutoGraph's `for` over a dataset."""
        site = batched.caller()
        if site is not None and batched.is_batched(dataset):
            one_rank_trace.walks()
        if not shared_loop.shares_out(dataset, batched.is_batched(dataset)) or site is None:
            return original(dataset, extra_test, body, *rest, **options)
        own, place = shared_loop.is_own(dataset), shared_loop.in_words(site)
        parts, work = (None, "") if own else divided.in_graph(dataset)
        if work:
            why_not = one_rank.why_not("It", first_step.INSIDE)
            log_once.log(f"{place}: {work}", why_not and f". {why_not}")
        else:
            one_rank.say_why_not(f"the loop at {place}", first_step.INSIDE)
        rows_of = counted_rows if own else own_rows if parts is None else _own_part
        data = dataset if parts is None else parts
        before = position.read_in_graph()
        by_row = not under_way.now().draws_apart

        def step(batch: Any) -> Any:
            """TensorFlow traces it as a function of the pipeline, and it is a step of the script's."""
            with under_way.having(draws_apart=not by_row):
                return body(rows_of(batch))

        result = original(data, extra_test, step, *rest, **options)
        position.leave_in_graph(before)
        return result

    registry[module.data.Dataset] = loop_over_dataset
    wrapping.method(module, "train.Checkpoint.__init__", _saving)
    wrapping.wrap(_iterators, "IteratorSpec._to_components", _given)


def _given(wrapped: Any, spec: Any, args: Any, kwargs: Any) -> Any:
    """An iterator is given to a tf.function that says itself what its elements are."""
    if type(spec) is _iterators.IteratorSpec and isinstance(args[0], DividedIterator):
        raise MatexError(
            "a tf.function with tf.data.IteratorSpec in its input_signature gets an iterator whose batches the ranks "
            "make together: leave out the input_signature, or take --data whole (docs/loops.md)."
        )
    return wrapped(*args, **kwargs)


def _saving(wrapped: Any, checkpoint: Any, args: Any, kwargs: Any) -> Any:
    """A script saves its iterators: any rank must be able to go on with what one has saved."""
    for one in kwargs.values():
        if isinstance(one, DividedIterator) and one.division is not None:
            one.division.saved = True
            one.division.ask(own=False)
    return wrapped(*args, **kwargs)


def _own_part(piece: Any, drop: Any = None) -> Any:
    """This rank's rows, in a graph; the position is set to them."""
    data, share = divided.own_piece(piece, drop)
    sharing_report.shared(training=False)
    position.enter_in_graph(share[2], tf.maximum(share[3], 1), share[1], share[4])
    return data


def own_rows(data: Any) -> Any:
    """This rank's rows of a batch, in a graph; the position is set to them."""
    leaves = tf.nest.flatten(data)
    having = [leaf for leaf in leaves if _composite(leaf) or leaf.shape.rank != 0]
    if not having:
        return data
    ranks = world.current()
    total, static = _rows(having[0]), _static_rows(having[0])
    slices = [
        any(leaf is one for one in having) and (static is None or _static_rows(leaf) in (None, static))
        for leaf in leaves
    ]
    low, high = ranks.rank * total // ranks.size, (ranks.rank + 1) * total // ranks.size
    begin = tf.where(high > low, low, tf.maximum(tf.minimum(low, total - 1), 0))
    end = tf.maximum(high, begin + 1)
    sharing_report.shared(training=False)
    position.enter_in_graph(high - low, tf.maximum(total, 1), end - begin, begin)
    return row_slicing.take(data, slices, begin, end)


def counted_rows(data: Any) -> Any:
    """A batch of the rank's own rows, in a graph; the position is set to them. Ranks must have as many batches."""
    having = [leaf for leaf in tf.nest.flatten(data) if _composite(leaf) or leaf.shape.rank != 0]
    if not having:
        return data
    rows, ranks = tf.cast(_rows(having[0]), tf.int32), world.current()
    own = tf.one_hot(ranks.rank, ranks.size, on_value=tf.cast(rows, tf.int64), off_value=tf.constant(0, tf.int64))
    (counts,) = tf_op.sum_over_ranks([own], "count the rows of a batch", ["rows"])
    counts = tf.cast(counts, tf.int32)
    total = tf.reduce_sum(counts)
    first = tf.minimum(tf.reduce_sum(counts[: ranks.rank]), tf.maximum(total - tf.maximum(rows, 1), 0))
    position.enter_in_graph(rows, tf.maximum(total, 1), tf.maximum(rows, 1), first)
    return data


def _composite(leaf: Any) -> bool:
    return isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor))


def _rows(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    return tf.cast(leaf.nrows(), tf.int32) if isinstance(leaf, tf.RaggedTensor) else tf.shape(leaf)[0]


def _static_rows(leaf: Any) -> int | None:
    shape = leaf.shape
    return shape[0] if shape.rank else None


def _say_inside() -> None:
    """Say that a compiled step that takes its batches by itself is not held against one rank."""
    site = batched.caller()
    if site is not None:
        one_rank.say_why_not(f"the step that takes a batch at {shared_loop.in_words(site)}", first_step.INSIDE)


def _iterators_next(iterator: Any) -> Any:
    return _iterators.OwnedIterator._next_internal(iterator)


class SharedIterator(_iterators.OwnedIterator):
    """An iterator over batches, of which the script gets this rank's rows."""

    _dataset: Any = None  # in a graph that the iterator was passed to there is none
    _walk: shared_loop.SharedLoop | None = None  # nor this

    def _take(self, batch: Any) -> Any:
        """In a graph: this rank's rows of a batch."""
        return counted_rows(batch) if self.is_own else own_rows(batch)

    @property
    def is_own(self) -> bool:
        """Whether the batches are of the rank's own rows. All ranks come here."""
        return self._dataset is not None and shared_loop.is_own(self._dataset)

    @property
    def _whole_spec(self) -> Any:
        """Of a batch of the script's."""
        return self.element_spec

    def take_for_step(self) -> divided.Batch:
        """The next batch, for a compiled step that takes it by itself."""
        return divided.Batch(_iterators_next(self))

    def _next_internal(self) -> Any:
        if not tf.executing_eagerly() and one_rank_trace.now() is not None:
            return taken_once(self._iterator_resource, self._whole_spec)
        if not tf.executing_eagerly():
            _say_inside()
            return self._take(super()._next_internal())
        if self._walk is None or threading.current_thread() is not threading.main_thread():
            return super()._next_internal()
        return self._walk.next(super()._next_internal)

    def get_next_as_optional(self) -> Any:
        one_rank_trace.walks()
        optional = super().get_next_as_optional()
        return optional if tf.executing_eagerly() else _TakenRows(optional, self._take)

    @property
    def _type_spec(self) -> Any:
        return SharedIteratorSpec(self.element_spec, "own" if self.is_own else "shared")

    def __del__(self) -> None:
        if self._walk is not None and not sys.is_finalizing():
            self._walk.close()


class OwnIterator(SharedIterator):
    """An iterator over batches of the rank's own rows, in a graph that it was passed to."""

    is_own = True


class DividedIterator(SharedIterator):
    """An iterator over a pipeline that makes pieces of batches, or this rank's rows alone."""

    division: divided.Division | None = None  # in a graph there is none
    _spec_of_batch: Any = None  # there
    is_own = False

    def _take(self, piece: Any) -> Any:
        return _own_part(piece, functools.partial(_iterators_next, self))

    def _next_internal(self) -> Any:
        if self.division is None or threading.current_thread() is threading.main_thread():
            return super()._next_internal()
        return self._unshared(self.division)

    def get_next_as_optional(self) -> Any:
        one_rank_trace.walks()
        if not tf.executing_eagerly():
            pieces = _iterators.OwnedIterator(components=(self._iterator_resource,), element_spec=self._element_spec)
            return _TakenRows(pieces.get_next_as_optional(), self._take)
        if self.division is None:
            return super().get_next_as_optional()
        try:
            return tf.experimental.Optional.from_value(self._unshared(self.division))
        except tf.errors.OutOfRangeError:
            return tf.experimental.Optional.empty(self.division.spec)

    def _unshared(self, division: divided.Division) -> Any:
        """The next batch, where nobody shares it out: whole."""
        return division.batch(functools.partial(_iterators_next, self)).data

    def take_for_step(self) -> divided.Batch:
        assert self.division is not None
        if not self.division.saved:
            self.division.ask(own=True)
        return self.division.batch(functools.partial(_iterators_next, self))

    @property
    def _whole_spec(self) -> Any:
        return self._spec_of_batch if self.division is None else self.division.spec

    @property
    def element_spec(self) -> Any:
        return self._element_spec.data if self.division is None else self.division.spec

    @property
    def _type_spec(self) -> Any:
        if self.division is not None:  # a tf.function gets this rank's rows of every batch
            self.division.ask(own=True)
        return SharedIteratorSpec(self._element_spec, "divided", self._whole_spec)

    def _serialize_to_tensors(self) -> Any:
        if self.division is not None and self.division.gives_own:
            raise MatexError(
                "an iterator over a tf.data pipeline cannot be saved while each rank makes its own rows of each batch: "
                "give it to tf.train.Checkpoint before its first batch is taken, or take --data whole (docs/data.md)."
            )
        return super()._serialize_to_tensors()


class _TakenRows:
    """An optional batch, of which this rank gets its rows."""

    def __init__(self, optional: Any, take: Any):
        self.has_value = optional.has_value
        self._optional, self._take = optional, take

    def get_value(self, name: str | None = None) -> Any:
        _say_inside()
        return self._take(self._optional.get_value(name))


class SharedIteratorSpec(_iterators.IteratorSpec):
    """What TensorFlow knows of an iterator of ours that is passed to a tf.function."""

    def __init__(self, element_spec: Any, kind: str = "shared", whole_spec: Any = None):
        """Args:
        kind: a key of `_KINDS`.
        whole_spec: of a batch of the script's, where elements are pieces of one.
        """
        super().__init__(element_spec)
        self._kind, self._whole_spec = kind, whole_spec

    def _serialize(self) -> Any:
        return self._element_spec, self._kind, self._whole_spec

    @property
    def value_type(self) -> Any:
        return _KINDS[self._kind]

    def _from_components(self, components: Any) -> Any:
        iterator = self.value_type(components=components, element_spec=self._element_spec)
        iterator._spec_of_batch = self._whole_spec
        return iterator


_KINDS = {"shared": SharedIterator, "own": OwnIterator, "divided": DividedIterator}


def _iterate(wrapped: Any, dataset: Any, args: Any, kwargs: Any) -> Any:
    inside = tf.inside_function()
    if inside and batched.is_batched(dataset):
        one_rank_trace.walks()
    if not (tf.executing_eagerly() or inside) or threading.current_thread() is not threading.main_thread():
        return wrapped()
    if not shared_loop.shares_out(dataset, batched.is_batched(dataset)):
        return wrapped()
    site = batched.caller()
    if site is None:
        return wrapped()
    if not inside:
        shuffle_orders.agree(dataset)
    division = None if inside else divided.of(dataset, site)
    if division is None:
        iterator = SharedIterator(dataset)
    else:
        iterator = DividedIterator(division.dataset)
        iterator.division = division
    if not inside:
        iterator._walk = shared_loop.SharedLoop(dataset, site, division)
        notes.put(iterator._iterator_resource, _Resource(weakref.ref(iterator)))
    return iterator


class _Resource(NamedTuple):
    """Of a resource: the iterator of the script that it is of, which is to be shared out."""

    iterator: weakref.ref[SharedIterator]


def in_use() -> bool:
    """Whether the script has any."""
    return bool(notes.having(_Resource))


def of_resource(resource: Any) -> SharedIterator:
    """The iterator that a resource belongs to."""
    iterator = notes.of(resource, _Resource).iterator()
    assert iterator is not None
    return iterator
