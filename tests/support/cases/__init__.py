"""The cases: functions that run on every rank of a pool (tests/support/pool.py), and what they share.

A test hands the function itself to the ranks. In the driver it is a name alone: see tests/support/named.py.
"""
