"""Rows that wait, since the network knows them already: their scores, and which of them an epoch uses.

It may import core and storage; patches may import it. Start reading in scoring.py.
"""
