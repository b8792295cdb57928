"""HDF5: arrays of inputs and labels, or a dataset for each class.

It may import readers.tables. Start reading in table.py.
"""
