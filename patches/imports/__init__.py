"""Modules that a script imports: Horovod's and MaTEx's names, other frameworks, and how TensorFlow makes its threads.

It may import patches.common. Start reading in horovod_alias.py.
"""
