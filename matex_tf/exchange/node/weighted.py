"""Arrays that count in part: what copies or adds them multiplies them, so that nothing else passes over them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Weighted(list[np.ndarray]):
    """Arrays, and what each is multiplied by.

    Attributes:
        factors: scalars of the arrays' dtypes; None for an array that counts as it is.
    """

    def __init__(self, arrays: Sequence[np.ndarray], factors: Sequence[np.generic | None]):
        super().__init__(arrays)
        self.factors = factors

    def some(self, places: Sequence[int]) -> Weighted:
        """The arrays at these places."""
        return Weighted([self[place] for place in places], [self.factors[place] for place in places])

    def multiplied(self) -> list[np.ndarray]:
        """The products, in memory of their own."""
        products: list[np.ndarray] = []
        for array, factor in zip(self, self.factors, strict=True):
            products.append(array if factor is None else np.empty_like(array))
            if factor is not None:
                put(array, factor, products[-1])
        return products


def put(array: np.ndarray, factor: np.generic | None, place: np.ndarray) -> None:
    """Write an array times its factor; as in `tf.math.multiply_no_nan`, what counts nothing is 0, whatever it is.

    Args:
        factor: a scalar of the dtype of `array`; None: 1.
        place: of the shape of `array`; overwritten.
    """
    if factor is None:
        place[...] = array
    elif factor:
        np.multiply(array, factor, out=place)
    else:
        place[...] = 0


def some(arrays: Sequence[np.ndarray], places: Sequence[int]) -> Sequence[np.ndarray]:
    """The arrays at these places, with their factors where they have some.

    Args:
        arrays: a sequence, or a `Weighted`, of which the result is one as well.
        places: positions in it, from 0.
    """
    return arrays.some(places) if isinstance(arrays, Weighted) else [arrays[place] for place in places]
