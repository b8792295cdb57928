"""What a training computes is written down step by step, for `matex-tf verify`; on one rank as on many.

It may import core, verifying and patches.common. Start reading in recorder.py.
"""
