"""NetCDF, classic and netCDF-4.

It may import readers.tables. Start reading in table.py.
"""
