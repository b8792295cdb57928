"""What all file formats share: a table of rows, which columns are inputs and labels, how bytes become arrays.

It may import core. Start reading in table.py.
"""
