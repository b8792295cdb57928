"""CSV: each rank finds the rows in its part of the bytes, and parses its part of the rows.

It may import readers.tables. Start reading in table.py.
"""
