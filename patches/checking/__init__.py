"""Whether a training step is that of one rank: its gradient of a whole batch, beside what the ranks would exchange.

It may import patches.common, exchange and strategies. Start reading in one_rank.py.
"""
