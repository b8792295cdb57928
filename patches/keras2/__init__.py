"""Keras 2, as tf_keras: its fit loop, optimizers, losses, metrics, layers and callbacks.

It may import what the room fit may, and fit itself: what does not know which Keras it serves is there. Start reading in trainer.py.
"""
