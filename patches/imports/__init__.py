"""Modules that a script imports: Horovod's and MaTEx's names, other frameworks, trackers, ports, and how TensorFlow
makes its threads.

It may import patches.common and patches.files. Start reading in horovod_alias.py.
"""
