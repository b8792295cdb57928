"""The center: what all groups have in common, in pieces on servers, which are threads of ranks or ranks of their own.

It may import core and exchange.network. Start reading in piece.py.
"""
