"""Losses, metrics and models that look across the rows of a batch: found, and given the rows of all ranks.

It may import patches.common and exchange. Start reading in gathered_batch.py.
"""
