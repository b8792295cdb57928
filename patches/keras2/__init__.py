"""Keras 2, as tf_keras: its fit loop, optimizers, losses, metrics, layers and callbacks.

It may import the rooms that do not know which Keras they serve (keras, fit and recovery among them). Start reading in trainer.py.
"""
