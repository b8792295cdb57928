"""A map that draws random numbers, in a script that gives TensorFlow no seed: other numbers in each epoch.

TensorFlow's ops without a seed draw what nobody can draw again, and ranks must agree. By the job's seed they would
begin again with each iterator: every epoch would flip the same images. So such an op becomes the stateless one of its
kind, and its seed is a number of the element, of a `Dataset.random` beside the elements, which gives other numbers
each time that it is walked over. The map only computes then, and is divided among the ranks as others are.

An op with a seed of the script's own stays what it is. If a map draws in a branch or a loop, or by an op that has no
stateless kind, it draws by the job's seed.

Relies on (TensorFlow 2.13 to 2.21): `tf.data.Dataset.random` and `map`, public; and `Context._seed`, private, which a
function takes the seeds of its ops from while it is traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import wrapt

from matex_tf import settings
from matex_tf.core.graph_ops import ops_of
from matex_tf.patches.common import seeds
from matex_tf.patches.sources import source_sharding
from matex_tf.state import notes

#: The stateless kind of an op that draws, the place of the seed among its inputs, and how its attributes are named.
_STATELESS = {
    "RandomUniform": ("StatelessRandomUniform", 1, {}),
    "RandomStandardNormal": ("StatelessRandomNormal", 1, {}),
    "TruncatedNormal": ("StatelessTruncatedNormal", 1, {}),
    "RandomUniformInt": ("StatelessRandomUniformInt", 1, {"Tout": "dtype"}),
    "Multinomial": ("StatelessMultinomial", 2, {}),
    "SampleDistortedBoundingBoxV2": ("StatelessSampleDistortedBoundingBox", 3, {}),
}
_NUMBER = "matex_number"


class _Numbers(notes.Inside):
    """Of a dataset: that it holds the numbers of elements."""


def install(module: ModuleType) -> None:
    """Patch tensorflow, once."""
    wrapt.wrap_function_wrapper(module, "data.Dataset.map", _map)


def are_numbers(dataset: Any) -> bool:
    """Whether a dataset holds the numbers of elements."""
    return notes.has(dataset, _Numbers)


def _map(wrapped: Any, dataset: Any, args: Any, kwargs: Any) -> Any:
    if settings.current().data != "exact" or not source_sharding.is_script_at_work() or seeds.of_script():
        return wrapped(*args, **kwargs)
    with _no_seed():
        made = wrapped(*args, **kwargs)

    function = getattr(getattr(made, "_map_func", None), "function", None)
    if function is None:
        return made
    count = sum(map(_draws, ops_of(function.graph)))
    if not count:
        return made
    definition = function.graph.as_graph_def()
    drawing = [node for node in definition.node if _draws(node)]
    known = all(node.op in _STATELESS for node in drawing) and len(drawing) == count
    return (known and _numbered(dataset, made, definition)) or wrapped(*args, **kwargs)


@contextlib.contextmanager
def _no_seed() -> Iterator[None]:
    """Inside of this block functions are traced as in a script that has set no seed."""
    from tensorflow.python.eager import context

    here = context.context()
    before, here._seed = here._seed, None
    try:
        yield
    finally:
        here._seed = before


def _draws(node: Any) -> bool:
    """Whether an op draws by no seed, or makes a dataset that does."""
    if "seed" in node.attr and "seed2" in node.attr:
        return not node.attr["seed"].i and not node.attr["seed2"].i
    return "Dataset" in node.op and ("Shuffle" in node.op or "Random" in node.op)


def _numbered(dataset: Any, made: Any, definition: Any) -> Any:
    """The pipeline behind a map, which draws by the numbers of the elements; None if it keeps another state.

    Args:
        dataset: what is mapped.
        made: the map as TensorFlow makes it.
        definition: the graph of its function; changed.
    """
    import tensorflow as tf

    from matex_tf.patches.division import deferred, drawn_first, purity

    function = made._map_func.function
    _use_numbers(definition)
    arguments = drawn_first.arguments_of(function)
    names = drawn_first.captured_of(function)

    def compute(*tensors: Any) -> list[Any]:
        named = zip((*(tensor.name for tensor in arguments), f"{_NUMBER}:0"), tensors, strict=True)
        return drawn_first.imported(definition, names, dict(named), function.outputs)

    number = tf.TensorSpec([], tf.int64)
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in arguments]
    computing = tf.function(compute, autograph=False).get_concrete_function(*specs, number)
    if purity.effects(computing):
        return None
    with source_sharding.paused():
        before = deferred.split(dataset)
        numbers = tf.data.Dataset.random(seeds.number() >> 32, rerandomize_each_iteration=True)
        notes.put(numbers, _Numbers())
        both = tf.data.Dataset.zip((before.source, numbers))
        source = deferred.restructured(both, (*before.source.element_spec, number), both)
        stage = deferred.stage_of(made)._replace(function=computing, takes=len(specs) + 1, of_vectors=None)
        return deferred.joined(before._replace(source=source, stages=(*before.stages, stage)), made)


def _use_numbers(definition: Any) -> None:
    """Let the ops of a graph that draw take their seeds from the number of the element, and from their place."""
    import tensorflow as tf

    number = definition.node.add(name=_NUMBER, op="Placeholder")
    number.attr["dtype"].type = tf.int64.as_datatype_enum
    for place, node in enumerate(one for one in list(definition.node) if _draws(one)):
        op, at, renamed = _STATELESS[node.op]
        which = definition.node.add(name=f"matex_place_{place}", op="Const")
        which.attr["dtype"].type = tf.int64.as_datatype_enum
        which.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(place, tf.int64))
        seed = definition.node.add(name=f"matex_seed_{place}", op="Pack", input=[_NUMBER, which.name])
        seed.attr["N"].i, seed.attr["T"].type = 2, tf.int64.as_datatype_enum
        node.op = op
        node.input.insert(at, seed.name)
        node.attr["Tseed"].type = tf.int64.as_datatype_enum
        for before, after in renamed.items():
            node.attr[after].CopyFrom(node.attr[before])
        for name in ("seed", "seed2", *renamed):
            del node.attr[name]
