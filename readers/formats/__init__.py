"""One module or folder for each file format, which says by its FORMAT what its files look like; `registry` lists them.

It may import readers.tables. Start reading in registry.py.
"""
