"""Who makes which rows of a batch, and why: one decision, one list of reasons, and what it rests on.

It may import patches.common. Start reading in decide.py.
"""
