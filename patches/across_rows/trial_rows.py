"""Made-up rows, by which it is tried whether a script's own function looks across the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.patches.common import batch_share, row_slicing

ROWS, SOME = 7, 2


def specs(given: Any, part: batch_share.StepShare) -> Any:
    """Specs of arguments: any number of rows for what has rows; what is not an array stays as it is.

    Args:
        given: the arguments, nested. part: of the step; says how many rows that sees.
    """

    def spec(leaf: Any) -> Any:
        if not is_array(leaf):
            return leaf
        value = tf.convert_to_tensor(leaf)
        return row_slicing.any_rows(value) if part.has_rows(value) else tf.TensorSpec(value.shape, value.dtype)

    return tf.nest.map_structure(spec, given)


def is_array(leaf: Any) -> bool:
    """Whether an argument is a number, an array or a tensor."""
    return tf.is_tensor(leaf) or isinstance(leaf, (np.ndarray, np.generic, float))


def traced(function: Callable[..., Any], given: Any, part: batch_share.StepShare) -> tuple[Any, list[tf.Tensor]]:
    """A function traced for any number of rows, outside of the step, and made-up arguments for it.

    Args:
        function: of one argument, `given`. given: nested, as the step has it. part: of the step.

    Returns:
        A concrete function of the arrays of `given`, flat, and a made-up tensor for each: of `ROWS` rows if it has
        rows.
    """
    flat = tf.nest.flatten(specs(given, part))
    places = [place for place, leaf in enumerate(flat) if isinstance(leaf, tf.TensorSpec)]

    def run(*leaves: Any) -> Any:
        filled = list(flat)
        for place, leaf in zip(places, leaves, strict=True):
            filled[place] = leaf
        return function(tf.nest.pack_sequence_as(given, filled))

    compiled = tf.function(tf.autograph.experimental.do_not_convert(run))
    random = np.random.RandomState(0)
    rows = [_values(flat[place], random) for place in places]
    return compiled.get_concrete_function(*(flat[place] for place in places)), rows


def tried(function: Callable[..., Any], given: Any, part: batch_share.StepShare) -> list[np.ndarray] | None:
    """What a function gives for made-up rows, for the first SOME of them, and for the others.

    Args:
        function: called with `*given`. given: arguments, as the step has them. part: of the step.

    Returns:
        Three arrays, float64; None where the function cannot be run by itself.
    """
    try:
        with tf.init_scope(), batch_share.hidden():
            compiled, rows = traced(lambda arguments: function(*arguments), given, part)
            spans = ((0, ROWS), (0, SOME), (SOME, ROWS))
            return [np.asarray(compiled(*part_of(rows, *span)), np.float64) for span in spans]
    except Exception:  # of the script's own code, which may want eager tensors, or other values
        return None


def part_of(rows: list[tf.Tensor], first: int, last: int) -> list[tf.Tensor]:
    """The made-up `rows` of each argument from `first` to before `last`; scalars as they are."""
    return [leaf[first:last] if leaf.shape.rank else leaf for leaf in rows]


def _values(spec: tf.TensorSpec, random: np.random.RandomState) -> tf.Tensor:
    shape = [size or 3 for size in spec.shape]
    if spec.shape.rank and spec.shape[0] is None:
        shape[0] = ROWS
    if spec.dtype.is_floating:
        return tf.constant(random.uniform(0.05, 0.95, shape), spec.dtype)
    return tf.cast(random.randint(0, 2, shape), spec.dtype)
