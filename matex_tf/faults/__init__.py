"""A rank dies: how the others notice, agree on it and carry on, and the checkpoints of those that start again.

It may import core and storage. Start reading in transactions.py.
"""
