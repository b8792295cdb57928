"""What a training computes is written down step by step, for `matex-tf verify`; on one rank as on many.

It may import core, verifying, patches.common and patches.keras2. Start reading in recorder.py.
"""
