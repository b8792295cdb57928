"""Random numbers: a rank draws those of its rows, the bits that one rank has for them.

What a seed alone makes needs its counter moved on. What an op draws from a state of its own (`tf.random.normal` in a
compiled step) has its counter in a variable here: the graphs of a step would have kernels with a state each.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_stateless_random_ops_v2 as counting

from matex_tf.patches.partition import compiled, philox
from matex_tf.patches.partition.labels import Label, R, S
from matex_tf.patches.partition.rules import Op, Ruling, rule

#: By the type of the op, whose inputs are shape, key, counter and algorithm: the layout of its numbers.
_COUNTED: dict[str, Callable[[Any], philox.Layout]] = {
    "StatelessRandomUniformV2": philox.plain,
    "StatelessRandomNormalV2": philox.plain,
    "StatelessRandomUniformIntV2": philox.plain,
    "StatelessRandomUniformFullIntV2": philox.plain,
    "StatelessTruncatedNormalV2": philox.rejecting,
    "StatelessRandomGammaV3": lambda dtype: philox.GAMMA,
}
#: By the type of an op with a state: that which draws the same from a counter, and its function.
STATEFUL: dict[str, tuple[str, Callable[..., Any]]] = {
    "RandomUniform": ("StatelessRandomUniformV2", counting.stateless_random_uniform_v2),
    "RandomStandardNormal": ("StatelessRandomNormalV2", counting.stateless_random_normal_v2),
    "TruncatedNormal": ("StatelessTruncatedNormalV2", counting.stateless_truncated_normal_v2),
    "RandomUniformInt": ("StatelessRandomUniformIntV2", counting.stateless_random_uniform_int_v2),
}

#: The types of ops that draw.
TYPES = (*_COUNTED, *STATEFUL)


@rule(*_COUNTED)
def counted(op: Op) -> Ruling | None:
    """Rows along the first axis."""
    algorithm = op.constant(3)
    if algorithm is None or int(algorithm) not in (philox.PHILOX, philox.CHOSEN):
        return None
    if op.shaped.by_xla and int(algorithm) == philox.CHOSEN and op.type != "StatelessRandomGammaV3":
        return Ruling([R] * len(op.labels), [R], _by_xla)
    if not _has_rows(op):
        return None
    wants: list[Label | None] = [R] * len(op.labels)
    if op.type == "StatelessRandomGammaV3":  # a parameter for each number
        if op.shapes[4] != op.out_shapes[0]:
            return None
        wants[4] = S(0)
    layout = _COUNTED[op.type](op.op.outputs[0].dtype)

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        def draw(shape: Any, counter: Any) -> Any:
            return builder.same(made, [tf.cast(shape, made.inputs[0].dtype), values[1], counter, *values[3:]])[0]

        return [_of_rows(builder, op, draw, values[2], layout)]

    return Ruling(wants, [S(0)], build)


@rule("StatelessRandomGetKeyCounter")
def key_and_counter(op: Op) -> Ruling | None:
    """They are for the generator of whoever compiles the op."""
    return Ruling([R], [R, R], _by_xla) if op.shaped.by_xla else None


def _by_xla(builder: Any, made: Any, values: list[Any]) -> list[Any]:
    """What XLA makes, of which a rank takes its rows: its generator gives other numbers than TensorFlow's."""
    return list(compiled.as_one(lambda given: builder.same(made, given))(values))


@rule(*STATEFUL)
def stateful(op: Op) -> Ruling | None:
    """From a counter in a variable, which moves on by the numbers of the whole batch."""
    seed, more = op.attribute("seed"), op.attribute("seed2")
    if not seed and not more:
        return None
    by_row, (kind, function) = _has_rows(op), STATEFUL[op.type]
    layout = _COUNTED[kind](op.op.outputs[0].dtype)

    def counter_of(builder: Any, made: Any, shape: Any) -> Any:
        if made not in builder.counters:
            state = builder.states.of(made)
            begun = state.read_value()
            state.assign_add(tf.reduce_prod(tf.cast(shape, tf.int64)) * philox.PER_NUMBER)
            builder.counters[made] = tf.bitcast(tf.stack([begun, tf.constant(more, tf.int64)]), tf.uint64)
        return builder.counters[made]

    def draw(made: Any, rest: list[Any], shape: Any, counter: Any) -> Any:
        given = {"minval": rest[0], "maxval": rest[1]} if rest else {"dtype": made.outputs[0].dtype}
        key = tf.bitcast(tf.constant([seed], tf.int64), tf.uint64)
        return function(shape=shape, key=key, counter=counter, alg=philox.PHILOX, **given)

    def build(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        own, counter = functools.partial(draw, made, values[1:]), counter_of(builder, made, values[0])
        return [_of_rows(builder, op, own, counter, layout)]

    def whole(builder: Any, made: Any, values: list[Any]) -> list[Any]:
        return [draw(made, values[1:], values[0], counter_of(builder, made, values[0]))]

    wants = [R] * len(op.labels)
    return Ruling(wants, [S(0)], build, whole) if by_row else Ruling(wants, [R], whole)


def _has_rows(op: Op) -> bool:
    shape, dims = op.out_shapes[0], op.known(0)
    return bool(shape) and None not in shape and dims is not None and not dims.is_constant and op.counts(shape[0])  # type: ignore[index, operator]


def _of_rows(builder: Any, op: Op, draw: Any, counter: Any, layout: philox.Layout) -> Any:
    """This rank's rows of a draw."""
    shape, sizes = builder.local_shape(op.out_shapes[0], S(0)), op.out_shapes[0]
    of_a_row = [sizes[0] // op.shaped.prime, *sizes[1:]]  # type: ignore[index, operator]
    each = builder.count(of_a_row, range(len(of_a_row)))
    first, rows = tf.cast(builder.first, tf.int64), tf.cast(builder.rows, tf.int64)
    number = math.prod(1 if op.counts(size) else size for size in of_a_row)
    if number % layout.group == 0 and not builder.any_length:
        return draw(shape, philox.advanced(counter, first * (each // layout.group) * layout.jump))
    return tf.reshape(philox.stretch(draw, first * each, rows * each, counter, layout), shape)
