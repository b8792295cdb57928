"""The order of rows in each epoch of a `fit` on arrays, for a script that gives TensorFlow no seed.

TensorFlow's ops that draw by a seed begin again with each iterator of a tf.data pipeline. So after
`keras.utils.set_random_seed` every epoch has the same order, in Keras as here. Without a seed Keras has another order
in each epoch. Ranks must agree on it, so here the job's seed, a number of the pipeline and that of the epoch say which.
So they do in the one rank that `matex-tf verify` compares with; what one rank runs otherwise is plain Keras.

Relies on (Keras 3.3 to 3.15, private): `ArrayDataAdapter.get_tf_dataset` and `_shuffle`; and
`tensorflow.python.ops.gen_random_ops.random_shuffle`, which mixes the rows there.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import wrapt

from matex_tf.patches.common import seeds, under_way


class Orders:
    """The orders of a pipeline, one for each epoch that begins."""

    def __init__(self) -> None:
        self._seed, self._begun = seeds.number(), itertools.count()

    def next(self, rows: int) -> np.ndarray:
        """The order of the next epoch: int64 of shape (rows,)."""
        return np.random.default_rng([self._seed, next(self._begun)]).permutation(rows)


class MixedBatches:
    """The indices of the rows of each batch, in another order each time that they are walked over."""

    def __init__(self, orders: Orders, rows: int, size: int):
        """Args: rows: of an epoch; size: rows of a batch."""
        self._orders, self._rows, self._size = orders, rows, size

    def __iter__(self) -> Iterator[tuple[np.ndarray]]:
        order = self._orders.next(self._rows)
        return ((order[low : low + self._size],) for low in range(0, self._rows, self._size))


def asked() -> Orders | None:
    """The orders of the pipeline that is being made; None where TensorFlow draws them."""
    orders: Orders | None = under_way.now().orders
    return orders


def install(module: ModuleType) -> None:
    """Patch keras.src.backend.tensorflow.trainer, once; around what else wraps the pipelines of arrays."""
    adapters = importlib.import_module("keras.src.trainers.data_adapters.array_data_adapter")
    ops = importlib.import_module("tensorflow.python.ops.gen_random_ops")
    wrapt.wrap_function_wrapper(adapters, "ArrayDataAdapter.get_tf_dataset", _pipeline)
    wrapt.wrap_function_wrapper(ops, "random_shuffle", _mixed)


def _pipeline(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    if seeds.of_script() or not adapter._shuffle or adapter._shuffle == "batch":
        return wrapped(*args, **kwargs)
    with under_way.having(orders=Orders()):
        return wrapped(*args, **kwargs)


def _mixed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    orders = asked()
    if orders is None:
        return wrapped(*args, **kwargs)
    import tensorflow as tf

    value = args[0] if args else kwargs["value"]
    order = tf.numpy_function(orders.next, [tf.shape(value, tf.int64)[0]], tf.int64)
    return tf.ensure_shape(tf.gather(value, order), value.shape)
