"""Ranks of one node: the memory that they share, and how they wait for one another in it.

It may import core. Start reading in interface.py.
"""
