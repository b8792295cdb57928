"""A step on several ranks that are threads, beside the same step on one rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.partition import Ranks, cut

SIZES = (23, 14, 2, 7, 1)  # rows of the batches


@dataclasses.dataclass
class Result:
    """Largest differences, and what was computed whole.

    Attributes:
        logs, variables: from one rank; apart: between ranks.
        whole: how many ops of each type.
        exchanges: in the graph of a step.
    """

    logs: float
    variables: float
    apart: float
    whole: dict[str, int]
    exchanges: int


def compare(
    build: Callable[[], Any],
    draw: Callable[[Any, int], Sequence[np.ndarray]] | None = None,
    sizes: Sequence[int] = SIZES,
    ranks: int = 3,
    fixed: int = 0,
) -> Result:
    """Args:
    build: makes variables and a function of a batch that returns a dict of logs.
    draw: from a generator and a number of rows to the tensors of a batch.
    fixed: the number of rows that the step is traced for; 0: any number.
    """
    generator = np.random.RandomState(0)
    batches = [(draw or rows)(generator, size) for size in sizes]
    specs = [tf.TensorSpec([fixed or None, *one.shape[1:]], one.dtype) for one in batches[0]]

    variables, function = build()
    traced = tf.function(function).get_concrete_function(*specs)
    several = Ranks(ranks, lambda rank: traced, [True] * len(specs), fixed=fixed)
    several.steps[0].graph()
    exchanges, logs = several.exchanges[0].calls, 0.0
    for batch in batches:
        given = [tf.constant(one) for one in batch]
        wanted = [tensor.numpy() for tensor in tf.nest.flatten(traced(*given))]
        for got in several(given, cut(len(batch[0]), ranks, generator)):
            logs = max([logs, *(_far(one, other) for one, other in zip(got, wanted, strict=True))])
    values = [[variable.numpy() for variable in variables]]
    values += [[several.numpy(variable, rank) for variable in variables] for rank in range(ranks)]
    far = [max([0.0, *(_far(one, other) for one, other in zip(some, values[0], strict=True))]) for some in values[1:]]
    apart = max(
        max([0.0, *(_far(one, other) for one, other in zip(some, values[1], strict=True))]) for some in values[1:]
    )
    return Result(logs, max(far), apart, several.whole(), exchanges)


def rows(generator: Any, size: int) -> list[np.ndarray]:
    return [generator.rand(size, 12), generator.randint(0, 4, (size, 1)).astype("int32")]


def _far(one: Any, other: Any) -> float:
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind not in "fiub":
        return float((one != other).any())
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf")
    finite = np.isfinite(other)
    return float(np.max(np.abs(one[finite].astype("f8") - other[finite].astype("f8")), initial=0))
