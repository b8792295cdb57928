"""One step for batches of any length: sequences, say, that are as long as the longest one of their batch.

`any_length.py` has the step made for a few lengths, `merged.py` makes one graph of these: what differs is integers, and
follows from the lengths. It may import patches.partition. Start reading in any_length.py.
"""
