"""The center: what all groups have in common, in pieces on servers, which are threads of ranks or ranks of their own.

It may import core, exchange.network and groups. Start reading in piece.py.
"""
