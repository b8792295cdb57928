"""Hooks that leave rows out of epochs, and measure those that are used. Knows Keras.

It may import core, samples, exchange and patches. Start reading in pruning.py.
"""
