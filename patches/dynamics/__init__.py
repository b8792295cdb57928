"""Hooks that let a training change while it runs; what changes is decided and done in `matex_tf.dynamics`.

It may import core, dynamics, patches.common and patches.data. Start reading in changing_fit.py.
"""
