"""Groups of ranks that train apart: which group takes which rows of a batch.

It may import core, faults, strategies, patches.common and patches.data. Start reading in steps.py.
"""
