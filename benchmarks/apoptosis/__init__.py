"""Apoptosis and growth, measured: see __main__.py."""
