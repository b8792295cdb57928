"""One module or folder for each file format; `registry` knows them.

It may import readers.tables. Start reading in registry.py.
"""
