"""Train an unmodified TensorFlow or Keras script on many MPI ranks."""

from typing import Any

from matex_tf.world import init, local_rank, rank, size

__version__ = "0.1.0"
__all__ = ["DataSet", "average", "init", "local_rank", "rank", "size"]


def __getattr__(name: str) -> Any:
    if name == "DataSet":  # numpy is imported when it is needed, not before the threads are set
        from matex_tf.readers import DataSet

        return DataSet
    if name == "average":
        from matex_tf.patches.loops.updates import average

        return average
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
