"""The data of Keras 3's `fit`, `evaluate` and `predict`: what walks over them on a rank.

It may import core, patches.common, patches.data, patches.division, patches.fit.step, patches.recovery,
patches.sources and patches.turns. Start reading in epoch_data.py.
"""
