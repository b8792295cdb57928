"""The order of rows in each epoch of a `fit` on arrays, for a script that gives TensorFlow no seed.

TensorFlow's ops that draw by a seed begin again with each iterator of a tf.data pipeline. So after
`keras.utils.set_random_seed` every epoch has the same order, in Keras as here. Without a seed Keras has another order
in each epoch. Ranks must agree on it, so here the job's seed, a number of the pipeline and that of the epoch say which.
So they do in the one rank that `matex-tf verify` compares with; what one rank runs otherwise is plain Keras.

Relies on (Keras 3.3 to 3.15, private): `ArrayDataAdapter.get_tf_dataset` and `_shuffle`; and
`tensorflow.python.ops.gen_random_ops.random_shuffle`, which mixes the rows there.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import wrapt

from matex_tf.core import world
from matex_tf.patches.common import seeds, under_way


class Orders:
    """The orders of a pipeline, one for each epoch that begins."""

    def __init__(self) -> None:
        self._seed, self._begun = seeds.number(), itertools.count()

    def next(self, rows: int) -> np.ndarray:
        """The order of the next epoch: int64 of shape (rows,)."""
        return np.random.default_rng([self._seed, next(self._begun)]).permutation(rows)


class ShardOrders:
    """The order in which each rank uses the rows of its shard, epoch by epoch; every rank knows those of all."""

    def __init__(self, counts: Sequence[int], shuffle: Any, seed: tuple[int, bool] | None = None):
        """Args:
        counts: rows of each rank.
        shuffle: whether they change places in an epoch.
        seed: see `seeds.of_orders`, the same on every rank; None: rank 0's. Collective then.
        """
        self._counts, self._shuffle = counts, bool(shuffle) and shuffle != "batch"
        if seed is None:
            drawn = seeds.of_orders() if shuffle else (0, True)
            seed = world.current().broadcast(drawn, "share the seed of the shards' order")
        self._seed: int = seed[0]
        self._epochs: Iterator[int] = itertools.repeat(0) if seed[1] else itertools.count()
        self.of = functools.lru_cache(maxsize=2 * len(counts))(self._of)

    def next_epoch(self) -> int:
        """The number of an epoch that begins."""
        return next(self._epochs)

    def _of(self, rank: int, epoch: int) -> np.ndarray:
        """A rank's rows in an epoch: int64; one if it has none."""
        count = max(1, self._counts[rank])
        return self.drawn(rank, epoch).permutation(count) if self._shuffle else np.arange(count)

    def drawn(self, *what: int) -> np.random.Generator:
        """What draws something of a rank, an epoch, and so on."""
        return np.random.default_rng([self._seed, *what])


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
