"""Rows that wait, measured: see __main__.py."""
