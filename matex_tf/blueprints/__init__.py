"""Networks that are candidates for one task: the ranges that they are drawn from, and which of them goes on.

It may import planning (for pictures), and knows neither ranks nor Keras. Start reading in halving.py.
"""
