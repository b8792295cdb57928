"""A traced step once more, with the shapes that it has for a prime number of rows.

A step is traced as Keras traces it, for a number of rows that is not known, so that the script's Python sees what it
sees on one rank. TensorFlow then infers all shapes anew for a batch of a prime number of rows that occurs nowhere in
the step: each dimension that is a multiple of it counts rows. Functions are inlined, and integers that follow from
shapes become `Affine`. No Python of the script runs again.

Relies on (TensorFlow 2.13 to 2.21, private): `FuncGraph` and its `_get_function`;
`handle_data_util.copy_handle_data`; `while_v2._get_graph`, `cond_v2.get_func_graphs`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import function_def_to_graph, op_def_registry, tensor_util
from tensorflow.python.ops import cond_v2, handle_data_util, while_v2

from matex_tf.patches.partition import copies
from matex_tf.patches.partition.patterns import fixed_rows
from matex_tf.patches.partition.shapes import integers, sliced
from matex_tf.patches.partition.shapes.affine import Affine
from matex_tf.patches.partition.shapes.shaped import BRANCHES, CALLS, HANDLES, LOOPS, Shaped, numbers_of
from matex_tf.patches.partition.tensor_map import TensorMap

#: Candidates; the first one of which no number in the step is a multiple is taken.
PRIMES = (7919, 7907, 7901, 7883, 7879, 7877, 7873, 7867, 7853, 7841)


def of(
    graph: Any, shapes: Sequence[Any], taken: Sequence[Sequence[Any]] = (), fixed: int = 0, rows: bool = True
) -> Shaped:
    """The graph of a traced step with shapes for a prime number of rows.

    Args:
        graph: a FuncGraph.
        shapes: for the first inputs of it, the shape with None for the number of rows; the others keep theirs.
        taken: the same for the tensors of each batch that the step takes from an iterator; see `iterators`.
        fixed: the number of rows that the graph was traced for; 0: any number.
        rows: whether a dimension that is None is the number of rows; else it is any size.
    """
    prime = _prime(graph)
    primed = functools.partial(_primed, prime=prime if rows else None)
    batches = [[primed(shape) for shape in batch] for batch in taken]
    given = [shape for shape in [*shapes, *(one for batch in taken for one in batch)] if shape.rank]
    sizes = {size for shape in given for size in shape.as_list() if size is not None}  # a length may be open in a trace
    return _shaped(graph, prime, [primed(shape) for shape in shapes], {}, sizes=sizes, batches=batches, fixed=fixed)


def _primed(shape: Any, prime: int | None) -> tf.TensorShape:
    return shape if shape.rank is None else tf.TensorShape([prime if size is None else size for size in shape])


def iterators(graph: Any) -> list[tuple[int, list[Any]]]:
    """For each batch that a step takes outside of loops and branches: the place of its iterator among the inputs, and
    the shapes of its tensors."""
    found: list[tuple[int, list[Any]]] = []

    def walk(inside: Any, places: TensorMap[int]) -> None:
        for op in in_order(inside):
            if op.type == "IteratorGetNext":
                found.append((places[op.inputs[0]], [tensor.shape for tensor in op.outputs]))
            elif _calls(op):
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
    lists: Sequence[tuple[Any, Any, Any]] = (),
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
            new.sizes.update(numbers_of(tensor))
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
        with new.graph.control_dependencies(waits) if waits else contextlib.nullcontext():
            if _calls(op):
                outputs, made[op] = _inline(op, inputs, new)
            else:
                outputs, made[op] = _op(op, inputs, new)
        for old, tensor in zip(op.outputs, outputs, strict=True):
            at[old] = tensor
            new.note_trace(tensor, old)


def _calls(op: Any) -> bool:
    """Whether an op calls a function; that of some has the function's name as its type, as in `tf.nn.ctc_loss`."""
    return op.type in CALLS or op_def_registry.get(op.type) is None


def _body(op: Any) -> Any:
    """The graph of the function that an op calls."""
    function = op.graph._get_function(op.get_attr("f").name if op.type in CALLS else op.type)
    body = getattr(function, "graph", None)
    if body is None:
        definition = getattr(function, "cached_definition", None) or function.definition
        body = function_def_to_graph.function_def_to_graph(definition, [t.shape for t in op.inputs])
    return body


def _inline(op: Any, inputs: Sequence[Any], new: Shaped) -> tuple[list[Any], list[Any]]:
    body = _body(op)
    new.add_functions_of(body)
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
        return integers.filled(*filled, op, new)
    if new.fixed and op.type == "Const" and fixed_rows.has_rows(op, new.fixed):
        return integers.by_row(op, new)
    values = integers.known(op, inputs, new)
    if values is not None and all(value.is_constant or integers.fits(value, new.prime, op) for value in values):
        outputs = [integers.made(value, tensor.dtype, new) for tensor, value in zip(op.outputs, values, strict=True)]
        return outputs, [tensor.op for tensor in outputs]
    definition = op.node_def
    drops = ("_output_shapes", "_class", *(["output_shapes"] if new.fixed and op.type in LOOPS + BRANCHES else []))
    attributes = {name: value for name, value in definition.attr.items() if name not in drops}
    if op.type == "Reshape" and new.fixed:
        inputs = [inputs[0], integers.reshaped(inputs, new)]
    elif op.type == "EnsureShape" and new.fixed:
        asked = fixed_rows.opened(tf.TensorShape(op.get_attr("shape")), new.fixed)
        attributes["shape"] = attr_value_pb2.AttrValue(shape=asked.as_proto())
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
        elif made.type == "LookupTableFindV2" and tensor.shape.rank is None:  # Python alone says the shape
            keys = made.inputs[1].shape
            tensor.set_shape(keys if old.shape.rank == keys.rank else None)
        elif made.type == "RaggedTensorToTensor" and _has_open_rows_alone(tensor.shape):
            tensor.set_shape([integers.rows_of_ragged(made, new), *tensor.shape[1:]])
    depends = any(
        tensor in new.known and not new.known[tensor].is_constant or None in (new.shape(tensor) or ())
        for tensor in made.inputs
    )
    outputs = []
    for tensor in made.outputs:
        if tensor in new.known:
            tensor = integers.made(new.known[tensor], tensor.dtype, new)
        elif made.type in sliced.CUTS and (shape := sliced.shape(made, tensor, new)) is not None:
            tensor = new.hidden(tensor, shape)
        elif depends and tensor.dtype not in HANDLES and tensor.shape.rank in (0, 1) and not new.rows_axes(tensor):
            tensor = new.hidden(tensor, tensor.shape)  # TensorFlow would compute with the prime
        outputs.append(tensor)
    return outputs, [made]


def _has_open_rows_alone(shape: Any) -> bool:
    return bool(shape.rank) and shape[0] is None


def _make(op: Any, inputs: list[Any], attributes: dict[str, Any], new: Shaped) -> Any:
    try:
        return copies.again(new.graph, op, inputs, attributes, op.name)
    except ValueError:  # numbers that the script wrote down do not go with the prime: nothing is known of this op
        hidden = [tensor if tensor.dtype in HANDLES else new.hidden(tensor, None) for tensor in inputs]
        return copies.again(new.graph, op, hidden, attributes, op.name)


def _loop(op: Any, made: Any, inputs: Sequence[Any], new: Shaped) -> None:
    """The graphs of a loop; what goes round keeps its shape."""
    graphs = [while_v2._get_graph(op, name, f"_{name}_graph") for name in ("cond", "body")]
    same = {i for i, (a, b) in enumerate(zip(graphs[1].inputs, graphs[1].outputs, strict=True)) if a is b}
    known = {i: new.known[tensor] for i, tensor in enumerate(inputs) if i in same and tensor in new.known}
    shapes = [tensor.shape for tensor in inputs]
    held = [new.lists.of(tensor) for tensor in inputs]
    body = _shaped(graphs[1], new.prime, shapes, known, inputs, held, new.sizes, fixed=new.fixed)
    after = [body.lists.of(tensor) for tensor in body.outputs]
    longer = [one[2] != two[2] for one, two in zip(after, held, strict=True)]
    if any(longer) or body.lists.lost and [str(one[0]) for one in after] != [str(one[0]) for one in held]:
        # What is read was put there in an earlier round.
        held = [(one[0], None, None if grows else one[2]) for one, grows in zip(after, longer, strict=True)]
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
            of_each = [body.lists.of(one) for body, one in zip(bodies, found, strict=True)]
            same_count = len({count for *_, count in of_each}) == 1
            new.lists.give(tensor, *of_each[0][:2], of_each[0][2] if same_count else None)
        elif all(one.shape.is_compatible_with(found[0].shape) for one in found) and tensor.shape.is_compatible_with(
            found[0].shape
        ):
            tensor.set_shape(found[0].shape)


def _prime(graph: Any) -> int:
    """A prime of which no dimension and no integer of the step is a multiple."""
    large = {number for number in numbers(graph) if number >= PRIMES[-1]}
    return next((prime for prime in PRIMES if not any(number % prime == 0 for number in large)), PRIMES[0])


def numbers(graph: Any) -> Iterator[int]:
    """The numbers that stand in a step: dimensions, and integers of constants that are not large."""
    for op in graph.get_operations():
        for tensor in op.outputs:
            yield from numbers_of(tensor)
        if op.type == "Const" and op.outputs[0].dtype.is_integer and (op.outputs[0].shape.num_elements() or 65) <= 64:
            yield from map(int, tensor_util.MakeNdarray(op.get_attr("value")).ravel())
