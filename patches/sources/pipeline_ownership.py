"""What a tf.data pipeline is made of: whether each rank's has its own rows, known before any of them is read.

Ranks compare the arrays in memory that their pipelines read, the arguments of `shard`, `skip`, `take` and the like,
names of files (without their directories, which may be a rank's own), and constants of the functions that map them.
Where all of that is the same, and nothing comes from files or from Python, the data are the same, and batches that
differ do so by random numbers or by order.

Relies on (TensorFlow 2.16 to 2.21, private, done without where they are gone): `_inputs`, `_tensors`, `_map_func`,
`_deterministic` and other attributes of a dataset that are eager tensors; `StructuredFunctionWrapper.function`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from matex_tf.core import world
from matex_tf.core.graph_ops import ops_of
from matex_tf.patches.sources import array_fingerprint, calls

#: Ops that read what nobody can compare beforehand: files, and code of Python.
_OPEN = ("PyFunc", "Generator", "ReadFile", "TextLine", "TFRecord", "FixedLength", "RecordIO", "Load", "Snapshot")
#: Ops that draw random numbers, by a part of their names; and classes of datasets that do.
_RANDOM = ("Random", "Multinomial", "TruncatedNormal", "Poisson", "Stateful", "PyFunc")
_NOT_RANDOM = ("StatefulPartitionedCall", "Stateless")
#: Attributes, by a part of their names, that change the order of rows at most.
_ORDERS = ("seed", "parallel", "buffer", "prefetch", "cycle")


class Source(enum.Enum):
    """What is known of a pipeline: the ranks have parts of their own, the same, or nobody can know yet."""

    OWN = "own"
    SAME = "same"
    OPEN = "open"


class Made(NamedTuple):
    """What is known of a pipeline before it is read.

    Attributes:
        source: see there.
        python: whether code of Python yields or changes its rows.
        ordered: whether the ranks would give the same order: none has another seed, say.
        touched: for each part of an element (flat) whether random numbers have touched it; empty where nobody knows.
    """

    source: Source
    python: bool = False
    touched: tuple[bool, ...] = ()
    ordered: bool = True


class _Found(NamedTuple):
    kinds: list[str]
    prints: list[array_fingerprint.Print]  # what must be the same on all ranks
    orders: list[array_fingerprint.Print]  # what may differ, and then rows come in another order
    opens: bool
    python: bool
    unordered: bool


def look(dataset: Any) -> Made:
    """Compare the pipelines of the ranks. All ranks come here."""
    mine = _walk(dataset)
    everyone = world.current().compare(mine, "compare what a pipeline is made of")
    if not all(_same(one, other) for one in everyone[:1] for other in everyone[1:]):
        return Made(Source.OWN)
    python = any(one.python for one in everyone)
    ordered = all(one.orders == mine.orders for one in everyone)
    unordered = not ordered or any(one.unordered for one in everyone)
    if unordered and not python:
        return Made(Source.SAME, ordered=ordered)  # of the same files in another order, say
    opens = any(one.opens for one in everyone)
    return Made(Source.OPEN if opens else Source.SAME, python, () if python else _touched(dataset), ordered)


def _same(one: _Found, other: _Found) -> bool:
    """Whether two pipelines are made of the same."""
    if one.kinds != other.kinds or len(one.prints) != len(other.prints):
        return False
    return all(map(array_fingerprint.alike, one.prints, other.prints))


def unwrapped(dataset: Any) -> Any:
    """A dataset without what TensorFlow 1 puts around it."""
    while "Adapter" in type(dataset).__name__ and hasattr(dataset, "_dataset"):
        dataset = dataset._dataset
    return dataset


def inputs_of(dataset: Any) -> list[Any]:
    """What a dataset is made from; nothing where nobody knows."""
    return [unwrapped(one) for one in dataset._inputs()] if hasattr(dataset, "_inputs") else []


def every(dataset: Any) -> Iterator[Any]:
    """A dataset and all that it is made from."""
    pending = [unwrapped(dataset)]
    while pending:
        one = pending.pop()
        yield one
        pending += inputs_of(one)


def unordered(dataset: Any) -> bool:
    """Whether a pipeline is said to have no fixed order; of one that is made inside of a tf.function, what it reads."""
    if tf.is_symbolic_tensor(dataset._variant_tensor):
        return any(map(unordered, inputs_of(dataset)))
    with tf.init_scope():  # in a graph TensorFlow does not know, and warns
        return bool(dataset.options().deterministic is False)


def _walk(dataset: Any) -> _Found:
    found = _Found([], [], [], False, False, False)
    opens = python = False
    order_open = unordered(dataset)
    for one in every(dataset):
        found.kinds.append(type(one).__name__)
        opens = opens or not hasattr(one, "_inputs") or any(part in type(one).__name__ for part in _OPEN)
        order_open = order_open or getattr(one, "_deterministic", None) == "false"
        for name, value in sorted(vars(one).items()):
            if hasattr(value, "function"):
                nodes = ops_of(value.function.graph)
                opens = opens or any(part in node.op for node in nodes for part in _OPEN)
                python = python or any(map(_calls_script, nodes))
                found.prints.extend(_constants(nodes))
                found.prints.extend(_prints(value.function.captured_inputs))
            elif "variant" not in name and not name.startswith("_input"):
                orders = any(part in name for part in _ORDERS)
                (found.orders if orders else found.prints).extend(_prints(_leaves(value)))
    return found._replace(opens=opens, python=python, unordered=order_open)


def _calls_script(node: Any) -> bool:
    return "PyFunc" in node.op or "Generator" in node.op


def _leaves(value: Any) -> list[Any]:
    if tf.is_tensor(value) or isinstance(value, (list, tuple)):
        return list(tf.nest.flatten(value, expand_composites=True))
    return []


def _prints(leaves: Iterable[Any]) -> list[array_fingerprint.Print]:
    return [
        array_fingerprint.of(array_fingerprint.rows(leaf), leaf.shape)
        for leaf in leaves
        if tf.is_tensor(leaf) and hasattr(leaf, "numpy") and leaf.dtype not in (tf.variant, tf.resource)
    ]


def _constants(nodes: Iterable[Any]) -> list[array_fingerprint.Print]:
    """The constants of a function, but for words, which may be paths of a rank's own."""
    constants = (tf.make_ndarray(node.attr["value"].tensor) for node in nodes if node.op == "Const")
    return [array_fingerprint.of(value) for value in constants if not value.dtype.hasobject]


def _touched(dataset: Any) -> tuple[bool, ...]:
    """For each part of an element whether random numbers have touched it; empty where that cannot be seen."""
    count = len(tf.nest.flatten(dataset.element_spec))
    inputs = inputs_of(dataset)
    function = getattr(getattr(dataset, "_map_func", None), "function", None)
    drawing = [value.function for value in vars(dataset).values() if hasattr(value, "function")]
    if not inputs:
        return (False,) * count
    befores = [_touched(one) for one in inputs]
    if not all(befores):
        return ()
    before = tuple(one for each in befores for one in each)
    if calls.kind(dataset) == "map" and function is not None:
        graph = function.graph
        # What is captured comes after the parts of an element.
        touched = {id(tensor) for tensor, is_touched in zip(graph.inputs, before, strict=False) if is_touched}
        flat = [_drawn(tensor, touched) for tensor in graph.outputs]
        return tuple(flat) if len(flat) == count else ()
    if any(_random(node.op) for one in drawing for node in ops_of(one.graph)) or len(before) != count:
        return ()
    return before


def _random(kind: str) -> bool:
    return any(part in kind for part in _RANDOM) and not any(part in kind for part in _NOT_RANDOM)


def _drawn(tensor: Any, touched: set[int]) -> bool:
    """Whether a random op, or an input that one has touched, lies before an output of a function."""
    library = {
        function.signature.name: any(_random(node.op) for node in function.node_def)
        for function in tensor.graph.as_graph_def().library.function
    }
    pending, seen = [tensor], set()
    while pending:
        one = pending.pop()
        if id(one) in touched:
            return True
        if one.op.name in seen:
            continue
        seen.add(one.op.name)
        if _random(one.op.type) or any(
            library.get(value.func.name) for value in one.op.node_def.attr.values() if value.HasField("func")
        ):
            return True
        pending += list(one.op.inputs)
    return False
