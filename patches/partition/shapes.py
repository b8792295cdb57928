"""Which axis counts rows: a traced step once more, with the shapes that it has for a prime number of rows.

A step is traced as Keras traces it, for a number of rows that is not known, so that the script's Python sees what it
sees on one rank. TensorFlow then infers all shapes anew for a batch of a prime number of rows that occurs nowhere in
the step: each dimension that is a multiple of it counts rows. Functions are inlined, and integers that follow from
shapes become `Affine`. No Python of the script runs again.

Relies on (TensorFlow 2.13 to 2.21, private): `FuncGraph` and its `_create_op_internal`, `_get_function`,
`_add_function_recursive`; `handle_data_util.copy_handle_data`; `while_v2._get_graph`, `cond_v2.get_func_graphs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import func_graph, function_def_to_graph, tensor_util
from tensorflow.python.ops import cond_v2, handle_data_util, while_v2

from matex_tf.patches.partition import affine
from matex_tf.patches.partition.affine import Affine
from matex_tf.patches.partition.labels import Label
from matex_tf.patches.partition.list_shapes import Lists
from matex_tf.patches.partition.patterns import fixed_rows
from matex_tf.patches.partition.tensor_map import TensorMap

#: Candidates; the first one of which no number in the step is a multiple is taken.
PRIMES = (7919, 7907, 7901, 7883, 7879, 7877, 7873, 7867, 7853, 7841)
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
LOOPS = ("While", "StatelessWhile")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
#: Values that are handles: they have no rows.
HANDLES = (tf.resource, tf.variant)


class Shaped:
    """A graph whose shapes are those for `prime` rows.

    Attributes:
        graph: of TensorFlow.
        inputs, outputs: tensors of the graph, in the order of those of the function that it was made of.
        ops: each after what it reads and what it waits for.
        prime: the number of rows.
        known: integers that follow from shapes, by tensor.
        integers: constants for these, one for each value; attributes: of the ops, by op.
        traced: the shape that a tensor had when the step was traced, by tensor.
        lists: what is known of lists of tensors.
        sizes: dimensions that do not depend on the rows.
        is_body: whether it is the body of a loop.
        states: variables in the place of what ops keep themselves, by op.
        bodies: of a loop "cond" and "body", of a branch one for each, by op.
        batches: that the step takes from iterators, in its order: the shapes of their tensors, which become inputs.
        fixed: the number of rows that the step was traced for; 0: any number.
        in_parts: the shapes of variables that lie in parts on the ranks.
    """

    def __init__(self, prime: int, around: Any = None):
        self.graph = func_graph.FuncGraph("rows")
        self.prime = prime
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.ops: list[Any] = []
        self.known: TensorMap[Affine] = TensorMap()
        self.attributes: dict[Any, dict[str, Any]] = {}
        self.traced: TensorMap[tf.TensorShape] = TensorMap()
        self.bodies: dict[Any, list[Shaped]] = {}
        self.is_body = False
        self.sizes: set[int] = set()
        self.lists = Lists(prime, self.known)
        self.integers: dict[Any, Any] = {}
        self.states: dict[Any, Any] = {}
        self.batches: Iterator[Sequence[Any]] | None = None
        self.fixed = 0
        self.in_parts: set[tuple[int | None, ...]] = set()
        self._functions_of(around)

    def counts(self, size: int | None) -> bool:
        """Whether a dimension counts rows: a multiple of the prime, once."""
        return bool(size) and size % self.prime == 0 and size // self.prime % self.prime != 0  # type: ignore[operator]

    def per_row(self, size: int, blocks: int = 1) -> int | None:
        """Elements of a row in a dimension of so many blocks; None if it is no multiple of them."""
        width, rest = divmod(size, self.prime * blocks)
        return None if rest or not width else width

    def is_rows(self, label: Label, shape: Sequence[int | None] | None) -> bool:
        """Whether a value of this shape can have this label S."""
        if shape is None or not 0 <= label.axis < len(shape):
            return False
        size = shape[label.axis]
        return size is not None and self.counts(size) and self.per_row(size, label.blocks) is not None

    def shape(self, tensor: Any) -> list[int | None] | None:
        """The dimensions of a tensor; None if their number is not known. One is None if it depends on the rows and is
        no multiple of them, such as that of `x[1:]`."""
        shape = tensor.shape
        if shape.rank is None:
            return None
        return [size if size in self.sizes or self.counts(size) else None for size in shape.as_list()]

    def rows_axes(self, tensor: Any) -> list[int]:
        """The axes of a tensor that count rows."""
        return [axis for axis, size in enumerate(self.shape(tensor) or []) if self.counts(size)]

    def note_trace(self, tensor: Any, old: Any) -> None:
        """Note the shape that a tensor had when the step was traced; its dimensions that count rows are open."""
        shape = old.shape
        if self.fixed and shape.rank:
            now = self.shape(tensor) or [None] * shape.rank
            number = [size is not None and not self.counts(size) for size in now]
            shape = tf.TensorShape([size if is_number else None for size, is_number in zip(shape, number, strict=True)])
        if tensor not in self.traced:
            self.traced[tensor] = shape

    def see(self, op: Any, made: Any) -> None:
        """Take note of the dimensions of what an op gives that do not depend on the rows: those of the trace, and those
        beside rows where what the op reads has such dimensions alone."""
        for tensor in op.outputs:
            self.sizes.update(_numbers_of(tensor))
        if any(None in (self.shape(tensor) or []) for tensor in made.inputs):
            return
        given = [self.known[tensor] for tensor in made.inputs if tensor in self.known]
        if any((value.per_row.astype(bool) & value.constant.astype(bool)).any() for value in given):
            return
        axes = max([int(any(not value.is_constant for value in given)), *(len(self.rows_axes(t)) for t in made.inputs)])
        for tensor in made.outputs:
            if tensor.shape.rank and len(self.rows_axes(tensor)) >= axes:
                self.sizes.update(size for size in tensor.shape.as_list() if size is not None and not self.counts(size))

    def hidden(self, tensor: Any, shape: Any) -> Any:
        """The tensor under another name, so that no shape is inferred from its value (or none from its shape)."""
        other = tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=shape)
        self.attributes[other.op] = dict(other.op.node_def.attr)
        self.ops.append(other.op)
        return other

    def _functions_of(self, graph: Any) -> None:
        while graph is not None:  # a function's functions may be known to the graph around it alone
            for function in getattr(graph, "_functions", {}).values():
                self.graph._add_function_recursive(function)
            graph = getattr(graph, "outer_graph", None)


def of(graph: Any, shapes: Sequence[Any], taken: Sequence[Sequence[Any]] = (), fixed: int = 0) -> Shaped:
    """The graph of a traced step with shapes for a prime number of rows.

    Args:
        graph: a FuncGraph.
        shapes: for the first inputs of it, the shape with None for the number of rows; the others keep theirs.
        taken: the same for the tensors of each batch that the step takes from an iterator; see `iterators`.
        fixed: the number of rows that the graph was traced for; 0: any number.
    """
    prime = _prime(graph)
    batches = [[_primed(shape, prime) for shape in batch] for batch in taken]
    return _shaped(graph, prime, [_primed(shape, prime) for shape in shapes], {}, batches=batches, fixed=fixed)


def _primed(shape: Any, prime: int) -> tf.TensorShape:
    return shape if shape.rank is None else tf.TensorShape([prime if size is None else size for size in shape])


def iterators(graph: Any) -> list[tuple[int, list[Any]]]:
    """For each batch that a step takes outside of loops and branches: the place of its iterator among the inputs, and
    the shapes of its tensors."""
    found: list[tuple[int, list[Any]]] = []

    def walk(inside: Any, places: TensorMap[int]) -> None:
        for op in in_order(inside):
            if op.type == "IteratorGetNext":
                found.append((places[op.inputs[0]], [tensor.shape for tensor in op.outputs]))
            elif op.type in CALLS:
                body, within = _body(op), TensorMap[int]()
                within.update((a, places[b]) for a, b in zip(body.inputs, op.inputs, strict=True) if b in places)
                walk(body, within)

    places: TensorMap[int] = TensorMap()
    places.update((tensor, place) for place, tensor in enumerate(graph.inputs))
    walk(graph, places)
    return found


def _shaped(
    graph: Any,
    prime: int,
    shapes: Sequence[Any],
    known: dict[int, Affine],
    like: Any = None,
    lists: Sequence[tuple[Any, Any]] = (),
    sizes: Iterable[int] = (),
    batches: Sequence[Sequence[Any]] = (),
    fixed: int = 0,
) -> Shaped:
    """Args:
    known: integers that inputs have, by their place.
    sizes: dimensions that are known not to depend on the rows.
    like: what comes in, for the body of a loop or branch; lists: what is known of those among it.
    """
    new = Shaped(prime, graph)
    new.sizes.update(sizes)
    new.batches, new.fixed = iter(batches) if batches else None, fixed
    at: TensorMap[Any] = TensorMap()
    with new.graph.as_default():
        for place, tensor in enumerate(graph.inputs):
            shape = shapes[place] if place < len(shapes) else tensor.shape
            given = tf.compat.v1.placeholder(tensor.dtype, shape)
            new.sizes.update(_numbers_of(tensor))
            if tensor.dtype in HANDLES:
                handle_data_util.copy_handle_data(like[place] if like else tensor, given)
            at[tensor] = given
            new.note_trace(given, tensor)
            if place in known:
                new.known[given] = known[place]
            if lists:
                new.lists.give(given, *lists[place])
            new.inputs.append(given)
            new.graph.inputs.append(given)
        _copy(graph, new, at, {})
        new.outputs = [at[tensor] for tensor in graph.outputs if tensor is not None]
    return new


def in_order(graph: Any) -> list[Any]:
    """The ops of a graph, each after what it reads and waits for, otherwise as they were made (the gradient of a loop
    adds outputs to the loop later)."""
    done: set[Any] = set()
    ordered = []
    for op in graph.get_operations():
        stack = [op]
        while stack:
            last = stack[-1]
            if last in done:
                stack.pop()
                continue
            waits = [before for before in _before(last) if before not in done and before.graph is graph]
            if waits:
                stack.extend(waits)
                continue
            done.add(last)
            ordered.append(stack.pop())
    return ordered


def _before(op: Any) -> Iterator[Any]:
    for tensor in op.inputs:
        yield tensor.op
    yield from op.control_inputs


def _copy(graph: Any, new: Shaped, at: TensorMap[Any], made: dict[Any, list[Any]]) -> None:
    """Copy the ops of a function's graph, whose inputs are in `at`, to the graph that is made.

    Args:
        at: tensors of the new graph by those of the old one; completed.
        made: ops of the new graph by the op of the old one; completed.
    """
    for op in in_order(graph):
        if op.type == "Placeholder" and all(tensor in at for tensor in op.outputs):
            continue
        waits = [one for before in op.control_inputs for one in made.get(before, ())]
        inputs = [at[tensor] for tensor in op.inputs]
        with new.graph.control_dependencies(waits):
            if op.type in CALLS:
                outputs, made[op] = _inline(op, inputs, new)
            else:
                outputs, made[op] = _op(op, inputs, new)
        for old, tensor in zip(op.outputs, outputs, strict=True):
            at[old] = tensor
            new.note_trace(tensor, old)


def _body(op: Any) -> Any:
    """The graph of the function that an op calls."""
    function = op.graph._get_function(op.get_attr("f").name)
    body = getattr(function, "graph", None)
    if body is None:
        definition = getattr(function, "cached_definition", None) or function.definition
        body = function_def_to_graph.function_def_to_graph(definition, [t.shape for t in op.inputs])
    return body


def _inline(op: Any, inputs: Sequence[Any], new: Shaped) -> tuple[list[Any], list[Any]]:
    body = _body(op)
    new._functions_of(body)
    at: TensorMap[Any] = TensorMap()
    at.update(zip(body.inputs, inputs, strict=True))
    made: dict[Any, list[Any]] = {}
    _copy(body, new, at, made)
    return [at[tensor] for tensor in body.outputs], [one for ops in made.values() for one in ops]


def _taken(op: Any, new: Shaped) -> tuple[list[Any], list[Any]]:
    """The tensors of a batch that the step takes from an iterator: they come in."""
    tensors = []
    for tensor, shape in zip(op.outputs, next(new.batches), strict=True):  # type: ignore[arg-type]
        given = tf.compat.v1.placeholder(tensor.dtype, shape)
        new.note_trace(given, tensor)
        new.inputs.append(given)
        new.graph.inputs.append(given)
        tensors.append(given)
    return tensors, []


def _op(op: Any, inputs: Sequence[Any], new: Shaped) -> tuple[list[Any], list[Any]]:
    if op.type == "IteratorGetNext" and new.batches is not None:
        return _taken(op, new)
    filled = fixed_rows.filled(op, new.fixed) if new.fixed and op.type == "Const" else None
    if filled is not None:
        return _fill(*filled, op, new)
    values = _known(op, inputs, new)
    if values is not None and all(value.is_constant or _fits(value, new.prime, op) for value in values):
        outputs = [_integers(value, tensor.dtype, new) for tensor, value in zip(op.outputs, values, strict=True)]
        return outputs, [tensor.op for tensor in outputs]
    definition = op.node_def
    drops = ("_output_shapes", "_class", *(["output_shapes"] if new.fixed and op.type in LOOPS + BRANCHES else []))
    attributes = {name: value for name, value in definition.attr.items() if name not in drops}
    made = _make(op, list(inputs), attributes, new)
    new.attributes[made] = attributes
    new.ops.append(made)
    new.lists.see(made, inputs)
    new.see(op, made)
    if op.type in LOOPS:
        _loop(op, made, inputs, new)
    elif op.type in BRANCHES:
        _branch(op, made, inputs, new)
    for old, tensor in zip(op.outputs, made.outputs, strict=True):
        if old.dtype == tf.resource:
            handle_data_util.copy_handle_data(old, tensor)
    depends = any(
        tensor in new.known and not new.known[tensor].is_constant or None in (new.shape(tensor) or ())
        for tensor in made.inputs
    )
    outputs = []
    for tensor in made.outputs:
        if tensor in new.known:
            tensor = _integers(new.known[tensor], tensor.dtype, new)
        elif depends and tensor.dtype not in HANDLES and tensor.shape.rank in (0, 1) and not new.rows_axes(tensor):
            tensor = new.hidden(tensor, tensor.shape)  # TensorFlow would compute with the prime
        outputs.append(tensor)
    return outputs, [made]


def _fill(shape: Affine, value: Any, op: Any, new: Shaped) -> tuple[list[Any], list[Any]]:
    """A constant of one value, as many times as there are rows."""
    dims, given = _integers(shape, tf.int32, new), tf.constant(value, op.outputs[0].dtype)
    made = tf.fill(dims, given)
    for one in (given.op, made.op):
        new.attributes[one] = dict(one.node_def.attr)
        new.ops.append(one)
    return [made], [made.op]


def _integers(value: Affine, dtype: Any, new: Shaped) -> Any:
    key = value.key, dtype
    if key not in new.integers:
        with new.graph.control_dependencies(None):
            tensor = new.integers[key] = tf.constant(value.at(new.prime), dtype)
        new.known[tensor] = value
        new.attributes[tensor.op] = dict(tensor.op.node_def.attr)
        new.ops.append(tensor.op)
    return new.integers[key]


def _fits(value: Affine, prime: int, op: Any) -> bool:
    return bool((np.abs(value.at(prime)) <= op.outputs[0].dtype.max).all())


def _make(op: Any, inputs: list[Any], attributes: dict[str, Any], new: Shaped) -> Any:
    def make(given: list[Any]) -> Any:
        types = [tensor.dtype for tensor in op.outputs]
        return new.graph._create_op_internal(op.type, given, types, attrs=attributes, name=op.name, op_def=op.op_def)

    try:
        return make(inputs)
    except ValueError:  # numbers that the script wrote down do not go with the prime: nothing is known of this op
        return make([tensor if tensor.dtype in HANDLES else new.hidden(tensor, None) for tensor in inputs])


def _known(op: Any, inputs: Sequence[Any], new: Shaped) -> list[Affine] | None:
    """The integers that an op gives, if they follow from shapes."""
    if op.type in ("Shape", "ShapeN", "Size"):
        found = [_dimensions(tensor, new) for tensor in inputs]
        if any(value is None for value in found):
            return None
        if op.type == "Size":
            count = affine.product(found[0])  # type: ignore[arg-type]
            return None if count is None else [count]
        return found  # type: ignore[return-value]
    if op.type == "Rank" and inputs[0].shape.rank is not None:
        return [Affine.of(inputs[0].shape.rank)]
    if op.type == "Const":
        dtype, size = op.outputs[0].dtype, op.outputs[0].shape.num_elements()
        if (dtype.is_integer or dtype == tf.bool) and size is not None and size <= 64:
            value = tensor_util.MakeNdarray(op.get_attr("value"))
            return [fixed_rows.sizes(op, value, new.fixed) if new.fixed else Affine.of(value)]
        return None
    if not op.outputs or not all(tensor.dtype.is_integer or tensor.dtype == tf.bool for tensor in op.outputs):
        return None
    return affine.fold(op, [new.known.get(tensor) for tensor in inputs])


def _dimensions(tensor: Any, new: Shaped) -> Affine | None:
    """The shape of a tensor; None if a dimension depends on the rows and is no multiple of them."""
    sizes = new.shape(tensor)
    if sizes is None or None in sizes:
        return None
    per_row = [size // new.prime if new.counts(size) else 0 for size in sizes]  # type: ignore[operator]
    constant = [0 if new.counts(size) else size for size in sizes]
    return Affine(np.asarray(per_row, np.int64), np.asarray(constant, np.int64))


def _loop(op: Any, made: Any, inputs: Sequence[Any], new: Shaped) -> None:
    """The graphs of a loop; what goes round keeps its shape."""
    graphs = [while_v2._get_graph(op, name, f"_{name}_graph") for name in ("cond", "body")]
    same = {i for i, (a, b) in enumerate(zip(graphs[1].inputs, graphs[1].outputs, strict=True)) if a is b}
    known = {i: new.known[tensor] for i, tensor in enumerate(inputs) if i in same and tensor in new.known}
    shapes = [tensor.shape for tensor in inputs]
    held = [new.lists.of(tensor) for tensor in inputs]
    body = _shaped(graphs[1], new.prime, shapes, known, inputs, held, new.sizes, fixed=new.fixed)
    after = [body.lists.of(tensor) for tensor in body.outputs]
    if body.lists.lost and [str(one[0]) for one in after] != [str(one[0]) for one in held]:
        held = [(shape, None) for shape, _ in after]  # what is read was put there in an earlier round
        body = _shaped(graphs[1], new.prime, shapes, known, inputs, held, new.sizes, fixed=new.fixed)
    body.is_body = True
    condition = _shaped(graphs[0], new.prime, shapes, known, inputs, held, new.sizes, fixed=new.fixed)
    new.bodies[made] = [condition, body]
    for given, tensor, back in zip(inputs, made.outputs, body.outputs, strict=True):
        if tensor.dtype == tf.variant:
            handle_data_util.copy_handle_data(back, tensor)
            new.lists.give(tensor, *body.lists.of(back))
        elif given.shape.rank is not None and back.shape.is_compatible_with(given.shape):
            tensor.set_shape(given.shape)


def _branch(op: Any, made: Any, inputs: Sequence[Any], new: Shaped) -> None:
    known = {i: new.known[tensor] for i, tensor in enumerate(inputs[1:]) if tensor in new.known}
    shapes = [tensor.shape for tensor in inputs[1:]]
    held = [new.lists.of(tensor) for tensor in inputs[1:]]
    graphs = cond_v2.get_func_graphs(op)
    bodies = [
        _shaped(graph, new.prime, shapes, known, inputs[1:], held, new.sizes, fixed=new.fixed) for graph in graphs
    ]
    new.bodies[made] = bodies
    for tensor, *found in zip(made.outputs, *(body.outputs for body in bodies), strict=True):
        if tensor.dtype == tf.variant:
            handle_data_util.copy_handle_data(found[0], tensor)
            new.lists.give(tensor, *bodies[0].lists.of(found[0]))
        elif all(one.shape.is_compatible_with(found[0].shape) for one in found) and tensor.shape.is_compatible_with(
            found[0].shape
        ):
            tensor.set_shape(found[0].shape)


def _numbers_of(tensor: Any) -> list[int]:
    """The dimensions of a tensor that are numbers."""
    return [size for size in tensor.shape.as_list() if size is not None] if tensor.shape.rank else []


def _prime(graph: Any) -> int:
    """A prime of which no dimension and no integer of the step is a multiple."""
    numbers = set(_numbers(graph))
    return next((prime for prime in PRIMES if not any(number % prime == 0 for number in numbers)), PRIMES[0])


def _numbers(graph: Any) -> Iterable[int]:
    for op in graph.get_operations():
        for tensor in op.outputs:
            for size in tensor.shape.as_list() if tensor.shape.rank is not None else ():
                if size is not None and size >= PRIMES[-1]:
                    yield size
        if op.type == "Const" and op.outputs[0].dtype.is_integer and (op.outputs[0].shape.num_elements() or 65) <= 64:
            yield from (int(v) for v in tensor_util.MakeNdarray(op.get_attr("value")).ravel() if v >= PRIMES[-1])
