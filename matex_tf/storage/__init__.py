"""Files that are whole or not there, directories of one user, and plain values as bytes.

It may import errors. Start reading in atomic_file.py.
"""
