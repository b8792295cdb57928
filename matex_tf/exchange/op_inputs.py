"""What an op of the exchange is given: gradients as they are, and the weight that each rank's count with.

A product of a gradient and its weight would be one more pass over memory in each step. The exchange copies what it adds
up, and multiplies it then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from matex_tf.exchange.node.reduction import Weighted
from matex_tf.state import notes


@dataclasses.dataclass(frozen=True)
class _Product(notes.Inside):
    """Of a tensor that is another one times a weight: those two. What exchanges it may take them in its place."""

    tensor: tf.Tensor
    weight: tf.Tensor


def note_product(product: tf.Tensor, tensor: tf.Tensor, weight: tf.Tensor) -> None:
    """Say of a tensor of a graph that it is `multiply_no_nan(tensor, weight)`, weight a scalar.

    The product is not computed where nobody but the exchange wants it.

    Args:
        product: of the shape and dtype of `tensor`.
        tensor: a gradient, of any shape.
        weight: of the dtype of `tensor`: this rank's part of the batch.
    """
    if not tf.executing_eagerly() and tensor.dtype in (tf.float32, tf.float64):
        notes.put(product, _Product(tensor, weight))


class Inputs:
    """What an op is given of tensors that it sums: of noted products what is multiplied, and last the weight.

    Attributes:
        tensors: the inputs.
    """

    def __init__(self, tensors: Sequence[tf.Tensor]):
        products = [notes.found(tensor, _Product) for tensor in tensors]
        self._weight = next((product.weight for product in products if product is not None), None)
        self._counts = [product is not None and product.weight is self._weight for product in products]
        self._dtypes = [tensor.dtype.as_numpy_dtype for tensor in tensors]
        self.tensors = [
            product.tensor if product is not None and counts else tensor
            for tensor, product, counts in zip(tensors, products, self._counts, strict=True)
        ]
        if self._weight is not None:
            self.tensors.append(self._weight)

    def arrays(self, given: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """What is summed, from what the op got."""
        if self._weight is None:
            return given
        weight = given[-1]
        return Weighted(
            given[:-1],
            [dtype(weight) if counts else None for dtype, counts in zip(self._dtypes, self._counts, strict=True)],
        )

    def multiplied(self, given: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The arrays of `arrays`, multiplied by the weights, as plain arrays."""
        arrays = self.arrays(given)
        return arrays.multiplied() if isinstance(arrays, Weighted) else list(arrays)
