"""Hooks that let a training change while it runs; what changes is decided and done in `matex_tf.features.dynamics`.

It may import core, dynamics and patches.common. Start reading in changing_fit.py.
"""
