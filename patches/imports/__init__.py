"""Modules that a script imports: MaTEx's names, other frameworks, trackers, ports, and how TensorFlow
makes its threads.

It may import patches.common and patches.files. Start reading in dataset_alias.py.
"""
