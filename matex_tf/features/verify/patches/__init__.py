"""The hooks of `matex-tf verify`: what a training computes, step by step, on one rank as on many.

It may import core, exchange, strategies, verify, patches.checking, patches.common and patches.keras.
Start reading in recorder.py.
"""
