"""Draws from the state of an op or of a generator: `tf.random.normal` and its kin, `tf.random.Generator`.

Inside of a step the numbers of a `tf.random.Generator`, and of ops in the graph of a step (see `op_states`), are drawn
for the rank's rows alone where `stateless_ops` can, and the state moves on by the whole. Other draws by row are drawn
for the whole batch, and cut, so that the state moves on as on one rank.

Relies on (TensorFlow 2.16 to 2.21, private): the functions of `tensorflow.python.ops.gen_random_ops` in `_SHAPED` and
`_BY_PARAMETERS` and its `multinomial`, `gen_stateful_random_ops.stateful_random_binomial`, which the public functions
call; `Generator._prepare_key_counter(shape)`, which moves a generator on by the numbers of that shape; public:
`Generator.__init__`.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_stateless_random_ops_v2 as _counting

from matex_tf.patches.common import batch_share, seeds, wrapping
from matex_tf.patches.partition.philox import PHILOX
from matex_tf.patches.random import op_states, row_span, stateless_ops

#: By the name of the function that draws: that which draws the same from a counter.
_SHAPED = {
    "random_uniform": "stateless_random_uniform_v2",
    "random_standard_normal": "stateless_random_normal_v2",
    "truncated_normal": "stateless_truncated_normal_v2",
    "random_uniform_int": "stateless_random_uniform_int_v2",
}
#: Parameters whose shape comes after that of the draw in the result.
_BY_PARAMETERS = {"random_gamma": "alpha", "random_poisson_v2": "rate"}


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    ops = importlib.import_module("tensorflow.python.ops.gen_random_ops")
    states = importlib.import_module("tensorflow.python.ops.gen_stateful_random_ops")
    generators = importlib.import_module("tensorflow.python.ops.stateful_random_ops")
    for name, counted in _SHAPED.items():
        wrapping.wrap(ops, name, _shaped(inspect.signature(wrapping.require(ops, name)), counted))
    for name, parameter in _BY_PARAMETERS.items():
        wrapping.wrap(ops, name, _by_parameter(inspect.signature(wrapping.require(ops, name)), parameter))
    wrapping.wrap(ops, "multinomial", stateless_ops.of_logits)
    binomial = inspect.signature(wrapping.require(states, "stateful_random_binomial"))
    wrapping.wrap(states, "stateful_random_binomial", stateless_ops.whole(binomial, ("counts", "probs")))
    wrapping.method(generators, "Generator._prepare_key_counter", _move_on)
    wrapping.method(generators, "Generator.__init__", _made)


def _shaped(signature: inspect.Signature, counted: str) -> Any:
    def draw(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        values = signature.bind(*args, **kwargs).arguments
        part = batch_share.of_draws()
        if part is None:
            return wrapped(*args, **kwargs)
        rows = row_span.of_shape(values["shape"])
        seed = values.get("seed") or 0, values.get("seed2") or 0
        if any(seed) and op_states.keeps(part):
            return _counted(getattr(_counting, counted), values, part, rows, seed)
        if rows is None:
            return wrapped(*args, **kwargs)
        return row_span.whole_and_cut(lambda shape: wrapped(**{**values, "shape": shape}), values["shape"], rows)

    return draw


def _counted(
    op: Any, values: dict[str, Any], part: batch_share.StepShare, rows: row_span.Rows | None, seed: tuple[int, int]
) -> Any:
    """The draw of an op, by one without state, which draws this rank's rows by itself."""
    shape = tf.convert_to_tensor(values["shape"])
    size = tf.reduce_prod(tf.cast(shape if rows is None else rows.whole_shape(shape), tf.int64))
    begun = op_states.move_on(part, seed, size)
    counter = tf.bitcast(tf.stack([begun, tf.constant(seed[1], tf.int64)]), tf.uint64)
    rest = {name: value for name, value in values.items() if name in ("dtype", "minval", "maxval", "name")}
    return op(shape=shape, key=tf.constant([seed[0]], tf.uint64), counter=counter, alg=PHILOX, **rest)


def _by_parameter(signature: inspect.Signature, name: str) -> Any:
    def draw(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        values = signature.bind(*args, **kwargs).arguments
        parameter = tf.convert_to_tensor(values[name])
        rows = row_span.of_shape(values["shape"])
        if rows is not None:
            return row_span.whole_and_cut(lambda shape: wrapped(**{**values, "shape": shape}), values["shape"], rows)
        rows = row_span.of_values(parameter)
        before = tf.convert_to_tensor(values["shape"]).shape[0]
        if rows is None or before is None:
            return wrapped(*args, **kwargs)
        whole = wrapped(**{**values, name: rows.pad(parameter)})
        return rows._replace(axis=before).cut(whole)

    return draw


def _made(wrapped: Any, generator: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    seeds.note_state(generator)


def _move_on(wrapped: Any, generator: Any, args: Any, kwargs: Any) -> Any:
    shape = args[0] if args else kwargs["shape"]
    rows = row_span.of_shape(shape)
    return wrapped(*args, **kwargs) if rows is None else wrapped(rows.whole_shape(shape))
