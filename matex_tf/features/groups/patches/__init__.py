"""Groups of ranks that train apart: which group takes which rows of a batch.

It may import core, faults, groups, groups.center, strategies, patches.common, patches.data, patches.fit and
patches.recovery. Start reading in steps.py.
"""
