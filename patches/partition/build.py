"""The second pass: the graph of a rank, from the plan."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from matex_tf.patches.partition import compiled, control_flow, copies, schedule, shards
from matex_tf.patches.partition.analysis import Node, Plan
from matex_tf.patches.partition.labels import CannotPartition, F, Label, R
from matex_tf.patches.partition.philox import States
from matex_tf.patches.partition.shapes.affine import Affine
from matex_tf.patches.partition.shapes.shaped import BRANCHES, HANDLES, LOOPS
from matex_tf.patches.partition.tensor_map import TensorMap

_COMBINE = {
    "max": tf.reduce_max, "min": tf.reduce_min, "prod": tf.reduce_prod, "all": tf.reduce_all, "any": tf.reduce_any,
}  # fmt: skip


class Exchange(Protocol):
    """What connects the ranks. `part`, `span` and `ends` need no other rank; the other methods meet the others, and are
    called in the same order on each of them."""

    def sum(self, tensors: Sequence[tf.Tensor], names: Sequence[str], coded: bool = False) -> list[tf.Tensor]:
        """The sum of each tensor over the ranks.

        Args:
            tensors: of any shape, the same on every rank. names: of each, as in the traced step, shown if ranks have
                gone different ways.
            coded: whether they may be encoded on their way.
        """

    def gather(self, tensors: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
        """Each tensor joined along the first axis, in the order of ranks.

        Args:
            tensors: `[rows, …]`, any dtype; the first axis alone may differ among the ranks. names: see `sum`.
        """

    def scatter(self, tensors: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
        """This rank's part (`shards.part`) of the sum of each tensor over the ranks: flat.

        Args:
            tensors: of shapes that are known, the same on every rank. names: see `sum`.
        """

    def join(self, parts: Sequence[tf.Tensor], sizes: Sequence[int], names: Sequence[str]) -> list[tf.Tensor]:
        """Whole values, flat.

        Args:
            parts: this rank's part of each, flat. sizes: how many elements each of them has whole. names: see `sum`.
        """

    def send(
        self, tensors: Sequence[tf.Tensor], counts: tf.Tensor, name: str
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Rows that each rank gets of every other one, in the order of ranks; and how many of each, as `counts`.

        Args:
            tensors: `[rows, …]`, any dtype, in the order of the ranks that get the rows; the first axis alone may
                differ among the ranks.
            counts: int64 `[ranks]`, the rows for each. name: see `sum`.
        """

    def part(self, whole: tf.Tensor) -> tf.Tensor:
        """This rank's part of a whole value. The ranks do not meet."""

    def span(self, size: int) -> tuple[int, int]:
        """The first element of this rank's part of so many, and the one after its last."""

    def ends(self, size: int) -> list[int]:
        """For each rank, the element after the last of its part of so many."""


def _outside(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a builder that makes integers: outside of loops and branches, if all are to be made there."""

    @functools.wraps(method)
    def made(builder: Builder, *arguments: Any) -> Any:
        if builder._around is None:
            return method(builder, *arguments)
        with builder._around._graph.as_default():
            return method(builder._around, *arguments)

    return made


class Builder:
    """Makes the graph of one plan in the graph that is current.

    Attributes:
        first, rows, total: int32 scalars: where the rank's rows begin in the batch, how many they are, and those of
            the batch.
        empty: whether the rank has no rows; some ops give a wrong shape then.
        states: of ops that draw random numbers from a state of their own; the same in all graphs of a plan.
        any_length: whether the graph is one of those from which `any_length` makes one for batches of other lengths:
            it is the same for all of them but for integers outside of loops and branches.
        counters: what such ops draw from in this graph, by op.
    """

    def __init__(
        self,
        plan: Plan,
        exchange: Exchange,
        first: Any,
        rows: Any,
        total: Any,
        empty: bool = False,
        after_last: Callable[[], Any] | None = None,
        states: States | None = None,
        any_length: bool = False,
        around: Builder | None = None,
    ):
        """Args: plan: finished. exchange: connects the ranks. after_last: makes an op that runs after the last
        exchange, and before any change of state that waits for it. states: the counters of its ops; None: new ones.
        around: that of the graph around all loops and branches, if integers are to be made there. The others: see the
        class."""
        self.plan, self.shaped, self.exchange = plan, plan.shaped, exchange
        self.first, self.rows, self.total = first, rows, total
        self.empty, self._after_last = empty, after_last
        self.states, self.any_length = states or States({}), any_length
        self._around, self._graph = around, tf_ops.get_default_graph()
        self.counters: dict[Any, Any] = {}
        self._values: TensorMap[Any] = TensorMap()
        self._different: TensorMap[Any] = TensorMap()
        self._converted: dict[tuple[int, Label], Any] = {}
        self._numbers: dict[Any, Any] = {}
        self.effects: list[Any] = []  # what a branch without outputs has given last
        # TensorFlow knows no order between an exchange and a loop or branch that has some inside.
        self._orders, self._met = False, list[Any]()
        self._fresh: dict[int, Any] = {}  # what is gathered for the op that is made now
        self._others: list[Any] = []  # what that reads besides

    def run(self, inputs: Sequence[Any], outputs: Sequence[Label | None]) -> list[Any]:
        """Args: inputs: of the graph, each with its label. outputs: the labels wanted; None: those that they have."""
        for tensor, value in zip(self.shaped.inputs, inputs, strict=True):
            self._values[tensor] = value
        levels: dict[int, list[Node]] = {}
        for node in self.plan.nodes:
            levels.setdefault(node.level, []).append(node)
        exchanges: dict[int, list[Any]] = {}
        for tensor, level in self.plan.exchanges.items():
            exchanges.setdefault(level, []).append(tensor)
        order: TensorMap[int] = TensorMap()
        order.update((tensor, place) for place, tensor in enumerate(self.shaped.inputs))
        for node in self.plan.nodes:
            for tensor in node.outputs:
                order[tensor] = len(order)
        last, before = schedule.last_exchange(self.plan), []
        meets = {node.op for node in self.plan.nodes if any(map(schedule.exchanges, node.inside))}
        self._orders = bool(meets)

        def meet(level: int) -> None:
            nonlocal before
            if level not in exchanges:
                return
            tensors = sorted(exchanges[level], key=order.__getitem__)
            self._meet(functools.partial(self._exchange, tensors))
            if level == last and self._after_last is not None:
                with tf.control_dependencies([self._exchanged(tensor) for tensor in tensors]):
                    before = [self._after_last()]

        def compute(level: int) -> list[Any]:
            for node in levels.get(level, ()):
                waits = before if node.op.op_def.is_stateful or node.inside else []
                with tf.control_dependencies([*waits, *self._met] if node.op in meets else waits):
                    self._node(node)
                if node.op in meets:
                    given = [self._values[tensor] for tensor in node.outputs] or self.effects
                    self._met = [value.op for value in given if tf.is_symbolic_tensor(value)] or self._met
            return self._given(self.shaped.outputs, outputs) if level == deepest else []

        deepest, given = max([0, *levels, *exchanges]), []
        for level in range(deepest + 1):
            meet(level)
            as_one = self.shaped.by_xla and level == last and not self.plan.gathers
            given = self._as_one(functools.partial(compute, level)) if as_one else compute(level)
        return given

    def _as_one(self, rest: Callable[[], list[Any]]) -> list[Any]:
        """Have XLA compile what follows the last exchange as a whole, as it does the step of one rank: so it overwrites
        variables in their place; what it makes of single ops does not."""
        return list(compiled.as_one(rest)())

    # -- values

    def get(self, tensor: Any, label: Label | None = None) -> Any:
        """The value of a tensor of the plan's graph; it is converted to a label once.

        Args:
            tensor: that an op before has given, or an input. label: wanted; None: its own.

        Raises:
            CannotPartition: a list is wanted with elements of another label, or what is none as a list.
        """
        root = self.plan.root(tensor)
        has = self.plan.labels[root]
        if self._is_gathered(root, label):
            return self._of_variables(root)
        if label is None or label == has or has.kind == "L":
            if label is not None and label != has and None not in (label.inside, has.inside):
                raise CannotPartition(f"a list of {has.inside} is wanted as one of {label.inside}")
            return self._natural(root)
        if (id(root), label) not in self._converted:
            self._converted[id(root), label] = self._convert(root, has, label)
        return self._converted[id(root), label]

    def _given(self, tensors: Sequence[Any], labels: Sequence[Label | None]) -> list[Any]:
        """The values that an op reads: those that are gathered for it alone come after the others."""
        roots = list(map(self.plan.root, tensors))
        late = [self._is_gathered(root, label) for root, label in zip(roots, labels, strict=True)]
        values: list[Any] = [None] * len(roots)
        self._fresh, self._others = {}, []
        for now in (False, True):
            for place in (place for place, is_late in enumerate(late) if is_late == now):
                values[place] = self.get(roots[place], labels[place])
            self._others = [value for value in values if tf.is_symbolic_tensor(value) and value.dtype not in HANDLES]
        return values

    def _is_gathered(self, root: Any, label: Label | None) -> bool:
        """Whether a value is wanted whole that is made of parts of variables alone."""
        return root in self.plan.of_variables and (label == R or self.plan.labels[root] == R)

    def _of_variables(self, root: Any) -> Any:
        """The whole value of what is made of parts of variables. It is gathered once what the op reads besides is
        there, and goes when the op is done: the next one that reads it has it gathered again."""
        if id(root) not in self._fresh:
            if self.plan.labels[root] == R:
                self._fresh[id(root)] = self._anew(self.plan.of_variables[root])
            else:
                self._fresh[id(root)] = self.joined(self._natural(root), root.shape, root.name, self._others)
        return self._fresh[id(root)]

    def joined(self, part: Any, shape: Any, name: str, others: Sequence[Any]) -> Any:
        """The whole value of a part, gathered once other values are there.

        Args:
            part: this rank's, flat. shape: of the whole value, known. name: shown if ranks have gone different ways.
            others: values of the graph that is built, which are waited for.
        """
        # Names are waited for: TensorFlow fuses no op that another one waits for, and rounds otherwise then.
        with tf.control_dependencies([tf.identity(value) for value in others]):
            whole = self._meet(lambda: self.exchange.join([part], [math.prod(shape)], [name]))[0]
        return tf.reshape(whole, shape)

    def summed(self, part: Any, name: str) -> Any:
        """The sum over the ranks of what an op has made, for itself.

        Args:
            part: this rank's summand, of a shape that is the same on every rank. name: see `joined`.
        """
        return self._meet(lambda: self.exchange.sum([part], [name]))[0]

    def gathered(self, rows: Any, name: str) -> Any:
        """Rows of all ranks, joined along the first axis. Args: rows: this rank's. name: see `joined`."""
        return self._meet(lambda: self.exchange.gather([rows], [name]))[0]

    def sent(self, rows: Any, counts: Any, name: str) -> tuple[Any, Any]:
        """The rows that every rank has for this one, and how many each has.

        Args:
            rows, counts: see `Exchange.send`. name: see `joined`.
        """

        def send() -> list[Any]:
            (given,), of_each = self.exchange.send([rows], counts, name)
            return [given, of_each]

        given, of_each = self._meet(send)
        return given, of_each

    def _natural(self, root: Any) -> Any:
        if self._is_gathered(root, None):
            return self._of_variables(root)
        if root not in self._values and root in self.shaped.known:
            self._values[root] = self.integers(self.shaped.known[root], root.dtype)
        return self._values[root]

    def _convert(self, root: Any, has: Label, label: Label) -> Any:
        if has.kind != "R":
            if label == R:
                return self._anew(self.plan.free[root])
            return self._from_whole(root, self.get(root, R), label)
        return self._from_whole(root, self._natural(root), label)

    def _anew(self, node: Node) -> Any:
        """The whole value of what gives rows and is made of whole values."""
        values = [self.get(tensor, R) for tensor in node.inputs]
        whole = node.ruling.whole
        value = (self.same(node.op, values) if whole is None else whole(self, node.op, values))[0]
        self._set_shape(value, node.outputs[0])
        return value

    def _from_whole(self, root: Any, whole: Any, label: Label) -> Any:
        if label.kind == "P" and label.is_sum:
            return tf.where(tf.equal(self.first, 0) & self.is_first_rank, whole, tf.zeros_like(whole))
        if label.kind == "P":
            return whole
        if label.kind == "F":
            return self.exchange.part(whole)
        if label.kind == "L":
            raise CannotPartition("a tensor is wanted as a list")
        return self.rows_of(root, whole, label)

    @property
    def is_first_rank(self) -> Any:
        """Whether no rank before this one has rows, and this one has: one rank of all, if the batch has rows."""
        return tf.greater(self.rows, 0)

    def rows_of(self, root: Any, whole: Any, label: Label) -> Any:
        """This rank's rows of a whole value.

        Args:
            root: the tensor of the plan's graph, whose shape says how wide a row is. whole: its value, or one as wide.
            label: S, the axis of rows and their blocks.
        """
        axis, blocks = label.axis, label.blocks
        size = self.shaped.shape(root)[axis]  # type: ignore[index]
        width = size // (self.shaped.prime * blocks)  # type: ignore[operator]
        rank = root.shape.rank
        begin, count = self.first * width, self.rows * width
        if blocks == 1:
            begins = tf.stack([begin if i == axis else 0 for i in range(rank)])
            return tf.slice(whole, begins, tf.stack([count if i == axis else -1 for i in range(rank)]))
        shape = tf.shape(whole)
        cut = tf.reshape(whole, tf.concat([shape[:axis], [blocks, self.total * width], shape[axis + 1 :]], 0))
        begins = tf.stack([begin if i == axis + 1 else 0 for i in range(rank + 1)])
        mine = tf.slice(cut, begins, tf.stack([count if i == axis + 1 else -1 for i in range(rank + 1)]))
        return tf.reshape(mine, tf.concat([shape[:axis], [blocks * count], shape[axis + 1 :]], 0))

    # -- exchanges

    def _meet(self, exchange: Callable[[], list[Any]]) -> list[Any]:
        """Make an exchange after what is ordered before it."""
        with tf.control_dependencies(self._met):
            given = exchange()
        if self._orders:
            self._met = given
        return given

    def _exchange(self, every: Sequence[Any]) -> list[Any]:
        tensors = [tensor for tensor in every if (id(tensor), F) not in self._converted]
        kinds = [self.plan.labels[tensor].kind for tensor in tensors]
        self._of_parts(
            [tensor for tensor in tensors if tensor in self.plan.scattered],
            [tensor for tensor, kind in zip(tensors, kinds, strict=True) if kind == "F"],
        )
        tensors = [t for t, kind in zip(tensors, kinds, strict=True) if kind != "F" and t not in self.plan.scattered]
        sums = [tensor for tensor in tensors if self.plan.labels[tensor].is_sum]
        others = [tensor for tensor in tensors if not self.plan.labels[tensor].is_sum]
        for coded in (False, True):
            some = [tensor for tensor in sums if (tensor in self.plan.gradients) == coded]
            if some:
                values, names = [self._values[tensor] for tensor in some], [tensor.name for tensor in some]
                for tensor, value in zip(some, self.exchange.sum(values, names, coded), strict=True):
                    self._converted[id(tensor), R] = value
        self._to_owners([tensor for tensor in others if tensor in self.plan.sparse.owned])
        others = [tensor for tensor in others if tensor not in self.plan.sparse.owned]
        if others:
            before, after = zip(*(self._joining(tensor) for tensor in others), strict=True)
            joined = self.exchange.gather(list(before), [tensor.name for tensor in others])
            for tensor, value, finish in zip(others, joined, after, strict=True):
                self._converted[id(tensor), R] = finish(value)
        for tensor in tensors:
            self._set_shape(self._converted[id(tensor), R], tensor)
        return [self._exchanged(tensor) for tensor in every]

    def _exchanged(self, tensor: Any) -> Any:
        """What an exchange has given."""
        return self._converted[id(tensor), F if tensor in self.plan.scattered else R]

    def _of_parts(self, sums: Sequence[Any], parts: Sequence[Any]) -> list[Any]:
        """Make parts of sums, and whole values of parts."""
        if sums:
            values = self.exchange.scatter([self._values[one] for one in sums], [one.name for one in sums])
            self._converted.update(((id(one), F), value) for one, value in zip(sums, values, strict=True))
        if parts:
            sizes = [one.shape.num_elements() for one in parts]
            values = self.exchange.join([self._values[one] for one in parts], sizes, [one.name for one in parts])
            for one, value in zip(parts, values, strict=True):
                self._converted[id(one), R] = tf.reshape(value, one.shape)
        return [*(self._converted[id(one), F] for one in sums), *(self._converted[id(one), R] for one in parts)]

    def _to_owners(self, tensors: Sequence[Any]) -> None:
        """Give sums by index to the ranks that have rows of the table, and take those for this rank's rows."""
        of_indices: TensorMap[list[Any]] = TensorMap()
        for tensor in tensors:
            of_indices.setdefault(self.plan.sparse.added[tensor], []).append(tensor)
        for indices, own in of_indices.items():
            table = self.plan.sparse.owned[indices]
            sums = [self._added(tensor) for tensor in own]
            places, counts = shards.to_owners(self._different[indices][0], table, self.exchange.ends(math.prod(table)))
            given, _ = self.exchange.send([tf.gather(one, places) for one in sums], counts, own[0].name)
            self._converted.update(((id(tensor), R), value) for tensor, value in zip(own, given, strict=True))

    def _joining(self, tensor: Any) -> tuple[Any, Callable[[Any], Any]]:
        """What of a tensor is joined along the first axis, and what makes the whole value of that."""
        label, value = self.plan.labels[tensor], self._values[tensor]
        if tensor in self.plan.sparse.added:
            return self._added(tensor), lambda joined: joined
        if label.kind == "P":
            reduce = _COMBINE[label.combine]
            return value[None], lambda joined: reduce(joined, 0)
        if label.axis == 0 and label.blocks == 1:
            return value, lambda joined: joined
        axis, shape = label.axis, tf.shape(value)
        width = self.shaped.shape(tensor)[axis] // (self.shaped.prime * label.blocks)  # type: ignore[index, operator]
        outer = tf.reduce_prod(shape[:axis]) * label.blocks
        inner = width * tf.reduce_prod(shape[axis + 1 :])
        turned = tf.transpose(tf.reshape(value, tf.stack([outer, self.rows, inner])), [1, 0, 2])
        whole = tf.concat([shape[:axis], [label.blocks * self.total * width], shape[axis + 1 :]], 0)
        return turned, lambda joined: tf.reshape(tf.transpose(joined, [1, 0, 2]), whole)

    def _added(self, tensor: Any) -> Any:
        """The different ones of the rank's indices, or for each of them the sum of the rank's values."""
        indices = self.plan.sparse.added[tensor]
        if indices not in self._different:
            self._different[indices] = tf.unique(self._values[indices])
        different, places = self._different[indices]
        if tensor is indices:
            return different
        return tf.math.unsorted_segment_sum(self._values[tensor], places, tf.size(different))

    # -- ops

    def same(self, op: Any, inputs: Sequence[Any]) -> list[Any]:
        """A copy of `op`, of the plan's graph, on this rank's values `inputs`; returns its outputs."""
        return list(copies.again(tf_ops.get_default_graph(), op, inputs, self.shaped.attributes[op], op.type).outputs)

    @_outside
    def integers(self, value: Affine, dtype: Any) -> Any:
        """Integers that follow from shapes, for the rows of the whole batch: a tensor of this `dtype`, shaped as the
        arrays of `value`."""
        return self._affine(value, self.total, dtype)

    @_outside
    def local_of(self, value: Affine, axis: int) -> Any:
        """A shape of which dimension `axis` counts the rank's rows, and the others those of the batch: int32
        `[dimensions]`, of the integers `value`, `[dimensions]` too."""
        parts = []
        for place, (k, c) in enumerate(zip(value.per_row.tolist(), value.constant.tolist(), strict=True)):
            rows = self.rows if place == axis else self.total
            parts.append(rows * k + c if k else tf.constant(c))
        return tf.stack(parts)

    @_outside
    def local_shape(self, shape: Sequence[int | None] | None, label: Label) -> Any:
        """The shape of a rank's value: int32 `[dimensions]`.

        Args:
            shape: for the prime number of rows, without None. label: of the value; the axis of an S counts the rank's
                rows, any other dimension those of the batch.
        """
        assert shape is not None
        key = *shape, label
        if key not in self._numbers:
            self._numbers[key] = self._local_shape(shape, label)
        return self._numbers[key]

    def _local_shape(self, shape: Sequence[int | None], label: Label) -> Any:
        sizes: list[Any] = []
        for axis, size in enumerate(shape):
            if axis == label.axis:
                sizes.append(self.rows * (size // self.shaped.prime))  # type: ignore[operator]
            elif self.shaped.counts(size):
                sizes.append(self.total * (size // self.shaped.prime))  # type: ignore[operator]
            else:
                sizes.append(size)
        return tf.stack(sizes) if sizes else tf.constant([], tf.int32)

    def count(self, shape: Sequence[int | None], axes: Sequence[int], value: Any = None) -> Any:
        """Elements along some axes, int64, on all ranks.

        Args:
            shape: for the prime number of rows. value: with that shape; for dimensions that are not known.
        """
        count = tf.constant(1, tf.int64)
        for axis in axes:
            size = shape[axis]
            if self.shaped.counts(size):
                count *= tf.cast(self.total, tf.int64) * (size // self.shaped.prime)  # type: ignore[operator]
            else:
                count *= tf.shape(value, tf.int64)[axis] if size is None else size
        return count

    def _affine(self, value: Affine, rows: Any, dtype: Any) -> Any:
        key = *value.key, dtype
        if key not in self._numbers:
            constant = tf.constant(value.constant.astype(dtype.as_numpy_dtype), dtype)
            if not value.is_constant:
                constant = tf.cast(rows, dtype) * tf.constant(value.per_row, dtype) + constant
            self._numbers[key] = constant
        return self._numbers[key]

    def _node(self, node: Node) -> None:
        op = node.op
        if op.type == "Const" and op.outputs[0] in self.shaped.known:
            return  # made when it is read
        if node.outputs and self._is_gathered(node.outputs[0], None):
            return  # made for each op that reads it
        skips = self.empty and op.outputs and not (node.inside or op.op_def.is_stateful or node.ruling.meets)
        nothing = self._of_no_rows(node) if skips else None
        if nothing is not None:
            outputs = nothing
            gathered = [*map(self._is_gathered, map(self.plan.root, node.inputs), node.ruling.wants)]
            self._given([t for t, is_one in zip(node.inputs, gathered, strict=True) if is_one], [R] * sum(gathered))
        elif op.type in LOOPS:
            outputs = control_flow.loop(self, node)
        elif op.type in BRANCHES and node.inside:
            outputs = control_flow.branch(self, node)
        else:
            values = self._given(node.inputs, node.ruling.wants)
            build = node.ruling.build
            outputs = self.same(op, values) if build is None else build(self, op, values)
        for tensor, value in zip(node.outputs, outputs, strict=True):
            self._values[tensor] = value
            if self.plan.labels[tensor] != F:
                self._set_shape(value, tensor)
            if self.plan.gathers and tensor in self.plan.scattered and tensor.shape.rank != 1:
                self._meet(functools.partial(self._of_parts, [tensor], []))  # the whole gradient need not wait

    def _of_no_rows(self, node: Node) -> list[Any] | None:
        """The outputs of an op on no rows: nothing, or a sum of nothing; None if one is something else.

        They are not computed, since some ops fail (the gradient of a filter) or lose a shape (a convolution).
        """
        outputs = []
        for tensor, label in zip(node.outputs, node.ruling.gives, strict=True):
            shape = self.shaped.shape(tensor)
            sums = label.is_sum and any(want is not None and want.kind == "S" for want in node.ruling.wants)
            if shape is None or None in shape or not (label.kind == "S" or sums):
                return None
            outputs.append(tf.fill(self.local_shape(shape, label), tf.zeros([], tensor.dtype)))
        return outputs

    def _set_shape(self, value: Any, tensor: Any) -> None:
        traced = self.shaped.traced.get(tensor)
        if traced is not None and traced.rank is not None and value.dtype not in HANDLES:
            value.set_shape(traced)

    def inside(self, plan: Plan) -> Builder:
        """The builder of a loop's body, or of a branch."""
        if self.any_length and schedule.exchanges(plan):
            raise CannotPartition("a loop or branch meets the other ranks")
        around = (self._around or self) if self.any_length else None
        numbers = self.first, self.rows, self.total
        return Builder(plan, self.exchange, *numbers, self.empty, None, self.states, self.any_length, around)
