"""Scripts that are made for a tf.distribute strategy: run as if they had one of one replica.

A strategy would share out among the devices of this process, or among processes that TF_CONFIG names, what is shared
out among ranks already. So what its class makes is TensorFlow's default strategy, whose scope, `run`, `reduce` and
datasets are those of one replica.

Relies on (TensorFlow 2.16 to 2.21): the names in `STRATEGIES`, `tf.distribute.get_strategy`,
`tf.nn.compute_average_loss`, public, and `_cluster_resolver` of `Strategy.extended`, private, which
`Strategy.cluster_resolver` gives.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf.patches.common import batch_share, log_once, wrapping

#: Strategies in whose place matex_tf is put, in tf.distribute or tf.compat.v1.distribute.
STRATEGIES = (
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "experimental.MultiWorkerMirroredStrategy",
    "experimental.CentralStorageStrategy",
)


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    seen = set()
    for path in (f"{prefix}distribute.{name}" for prefix in ("", "compat.v1.") for name in STRATEGIES):
        if path.startswith("compat.v1.distribute.Multi"):
            continue  # there it is experimental
        strategy = wrapping.require(module, path)
        if strategy not in seen:
            seen.add(strategy)
            strategy.__new__ = staticmethod(_made(path.rpartition(".")[2]))
    wrapping.wrap(module, "nn.compute_average_loss", _average_loss)


def _made(name: str) -> Any:
    """What a strategy of this name is made by: a class whose `__new__` gives another class skips its `__init__`."""

    def make(cls: type, *args: Any, **kwargs: Any) -> Any:
        if wrapping.is_aside() or wrapping.alone():
            return object.__new__(cls)
        log_once.log(
            f"tf.distribute.{name}: matex_tf takes its place, and the script runs as with one replica; its batch is "
            "split among the ranks"
        )
        strategy = tf.distribute.get_strategy()
        if "MultiWorker" in name:  # TF_CONFIG is not asked: all ranks are the first worker, and one of them writes
            strategy.extended._cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec({"worker": ["localhost:1"]}), task_type="worker", task_id=0
            )
        return strategy

    return make


def _average_loss(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """A sum over rows divided by the script's batch size: of this rank's rows, as the mean that ranks then average."""
    loss = wrapped(*args, **kwargs)
    part = batch_share.current()
    given = args[2] if len(args) > 2 else kwargs.get("global_batch_size")
    if part is None or given is None:
        return loss
    return tf.math.divide_no_nan(loss, tf.cast(part.weight_in_mean, loss.dtype))
