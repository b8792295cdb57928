"""A rank dies: how the others notice, agree on it and carry on.

It may import core. Start reading in transactions.py.
"""
