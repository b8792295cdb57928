"""Keras on JAX: steps that XLA divides among the ranks, each of which has its rows of a batch.

Between steps a rank has arrays of its own, as on one rank; in a step they are those of all ranks.
It may import core, readers, watching, patches.common, patches.fit, patches.imports and patches.steps.
Start reading in step.py.
"""
