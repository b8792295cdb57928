"""Files that are damaged, crafted or endless: how much they may ask for, whether all is there, who reads too long.

It may import core. Start reading in read_watch.py.
"""
