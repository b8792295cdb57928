"""Ranks that come to a `fit`, and to loops of the script's own with compiled steps.

It may import core, storage, patches and join's own. Start reading in growing_fit.py.
"""
