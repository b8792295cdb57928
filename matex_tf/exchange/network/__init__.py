"""Ranks of different nodes: messages, allreduce algorithms on them, and what numbers look like on the wire.

It may import core. Start reading in lane.py.
"""
