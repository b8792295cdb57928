"""Networks that are candidates for one task: the ranges that they are drawn from, and which of them goes on.

It may import planning (for pictures), launch and core (for jobs), and does not know Keras. Start reading in halving.py.
"""
