"""Horovod's `DistributedOptimizer` and tape, for Keras 3 and for tf.compat.v1.

It may import patches.horovod.core. Start reading in gradients.py.
"""
