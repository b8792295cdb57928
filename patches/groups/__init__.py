"""Groups of ranks that train apart: which group takes which rows of a batch.

It may import core, center, faults, strategies, patches.common, patches.data and patches.recovery.
Start reading in steps.py.
"""
