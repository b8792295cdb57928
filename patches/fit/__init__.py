"""The loop of `fit`, `evaluate` and `predict`, and the callbacks that steer it.

It may import all other rooms of patches. Start reading in trainer.py.
"""
