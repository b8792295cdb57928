"""Train an unmodified TensorFlow or Keras script on many MPI ranks."""

from matex_tf.world import init, local_rank, rank, size

__version__ = "0.1.0"
__all__ = ["init", "local_rank", "rank", "size"]
