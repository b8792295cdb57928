"""Horovod's `DistributedOptimizer` and tape, for Keras 3 and for tf.compat.v1.

It may import horovod.names.core and patches.common. Start reading in gradients.py.
"""
