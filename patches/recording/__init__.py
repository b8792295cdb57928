"""What a training computes, step by step, for `matex-tf verify`, on one rank as on many; how far it is, for watchers.

It may import core, strategies, verifying, watching, patches.checking, patches.common, patches.keras and
patches.keras2. Start reading in recorder.py.
"""
