"""Draws that a seed alone makes: `keras.random.*` and the layers that use it, `tf.random.stateless_*`.

Inside of a step a draw by row is this rank's part of what one rank draws for the whole batch. Uniform, normal,
truncated normal and gamma numbers are drawn for the rank's rows alone, see `philox`; others are drawn whole and cut.

Relies on (TensorFlow 2.16 to 2.21, private): the functions of `tensorflow.python.ops.gen_stateless_random_ops_v2` in
`_COUNTED`, and those of `gen_stateless_random_ops` in `_BY_PARAMETERS`, which the public functions call.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.patches.common import wrapping, xla
from matex_tf.patches.partition.philox import CHOSEN, PHILOX
from matex_tf.patches.random import philox, row_span, xla_draws

#: By the name of the function that draws: the layout of its numbers, for their dtype.
_COUNTED = {
    "stateless_random_uniform_v2": philox.plain,
    "stateless_random_normal_v2": philox.plain,
    "stateless_random_uniform_int_v2": philox.plain,
    "stateless_random_uniform_full_int_v2": philox.plain,
    "stateless_truncated_normal_v2": philox.rejecting,
    "stateless_random_gamma_v3": lambda dtype: philox.GAMMA,
}
#: The same, drawn whole: the names of parameters that may have one entry for each number.
_BY_PARAMETERS = {
    "stateless_random_binomial": ("counts", "probs"),
    "stateless_random_poisson": ("lam",),
    "stateless_parameterized_truncated_normal": ("means", "stddevs", "minvals", "maxvals"),
}


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    counted = importlib.import_module("tensorflow.python.ops.gen_stateless_random_ops_v2")
    others = importlib.import_module("tensorflow.python.ops.gen_stateless_random_ops")
    for name, layout in _COUNTED.items():
        wrapping.wrap(counted, name, _counted(inspect.signature(wrapping.require(counted, name)), layout))
    for name, parameters in _BY_PARAMETERS.items():
        wrapping.wrap(others, name, whole(inspect.signature(wrapping.require(others, name)), parameters))
    wrapping.wrap(others, "stateless_multinomial", of_logits)
    wrapping.wrap(counted, "stateless_random_get_key_counter", _key_and_counter)


def _counted(signature: inspect.Signature, layout_of: Any) -> Any:
    def draw(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        values = given.arguments
        rows = row_span.of_shape(values["shape"])
        by_xla = xla.active() and values["alg"] == CHOSEN and "alpha" not in values
        if rows is None:
            return xla_draws.by_xla(wrapped, values) if by_xla else wrapped(*args, **kwargs)

        def part(shape: Any, counter: Any) -> Any:
            given = {**values, "shape": shape, "counter": counter}
            return xla_draws.by_xla(wrapped, given) if by_xla else wrapped(**given)

        layout = layout_of(_dtype(values))
        alpha = values.get("alpha")
        one_span = len(rows.spans) == 1
        if (
            rows.axis == 0
            and not by_xla
            and values["alg"] in (PHILOX, CHOSEN)
            and (alpha is None or (one_span and _full(alpha, values)))
        ):
            return philox.draw(part, values["shape"], values["counter"], layout, rows)
        if alpha is not None:
            values["alpha"] = padded(alpha, values["shape"], rows)
        return row_span.whole_and_cut(lambda shape: part(shape, values["counter"]), values["shape"], rows)

    return draw


def _key_and_counter(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if xla.active():
        return xla_draws.key_and_counter(wrapped, args[0] if args else kwargs["seed"])
    return wrapped(*args, **kwargs)


def _dtype(values: dict[str, Any]) -> tf.DType:
    """The dtype of the numbers of a draw."""
    return (
        tf.as_dtype(values["dtype"])
        if "dtype" in values
        else next(tf.convert_to_tensor(values[name]).dtype for name in ("minval", "alpha") if name in values)
    )


def _full(alpha: Any, values: dict[str, Any]) -> bool:
    """Whether each number of a draw has a parameter of its own."""
    shape = tf.convert_to_tensor(values["shape"]).shape
    return alpha.shape.rank is not None and shape.rank == 1 and alpha.shape.rank == shape[0]


def padded(parameter: Any, shape: Any, rows: row_span.Rows) -> Any:
    """A parameter as it is for the draw of the whole batch, where it has an entry for each row.

    Args:
        parameter: broadcasts against the draw. shape: of this rank's part of that. rows: how this lies in the whole.
    """
    parameter = tf.convert_to_tensor(parameter)
    length = tf.convert_to_tensor(shape).shape[0]
    if length is None or parameter.shape.rank is None or rows.axis < length - parameter.shape.rank:
        return parameter
    axis = rows.axis - (length - parameter.shape.rank)
    if parameter.shape[axis] == 1 and not (tf.executing_eagerly() and int(rows.spans[0].size) == 1):
        return parameter  # the same for all rows
    return rows._replace(axis=axis).pad(parameter)


def whole(signature: inspect.Signature, parameters: tuple[str, ...]) -> Any:
    """A wrapper (see `wrapping.wrap`) that draws for the whole batch, and cuts.

    Args:
        signature: of the function that draws, with a `shape`. parameters: of its arguments, those that may have an
            entry for each number.
    """

    def draw(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        values = given.arguments
        rows = row_span.of_shape(values["shape"])
        if rows is None:
            return wrapped(*args, **kwargs)
        for name in parameters:
            values[name] = padded(values[name], values["shape"], rows)
        return row_span.whole_and_cut(lambda shape: wrapped(**{**values, "shape": shape}), values["shape"], rows)

    return draw


def of_logits(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """A draw of categories, by rows of logits. A wrapper: see `wrapping.wrap`."""
    logits = tf.convert_to_tensor(args[0] if args else kwargs["logits"])
    rows = row_span.of_values(logits)
    if rows is None:
        return wrapped(*args, **kwargs)
    given = {**kwargs, "logits": rows.pad(logits)}
    return rows.cut(wrapped(*((given.pop("logits"), *args[1:]) if args else ()), **given))
