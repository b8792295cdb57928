"""Where files lie: on a disk, or at an address.

It may import errors. Start reading in addresses.py.
"""
