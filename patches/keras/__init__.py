"""The parts of Keras that compute: optimizers, losses, metrics, layers and weights.

It may import patches.common, strategies and exchange. Start reading in optimizer.py.
"""
