"""Keras 2, as tf_keras: its fit loop, optimizers, losses, metrics, layers and callbacks.

It may import the rooms that serve any Keras (keras, fit and recovery among them). Start reading in trainer.py.
"""
