"""The built-in networks of `matex-tf label`: their layers, what augments images, and how they learn.

It may import Keras, and nothing of the house. Start reading in learner.py.
"""
