"""Modules that a script imports: Horovod's and MaTEx's names, and frameworks that are not shared out.

It may import patches.common. Start reading in horovod_alias.py.
"""
