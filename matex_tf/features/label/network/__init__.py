"""The built-in networks of `matex-tf label`: their layers, what augments images, how they learn; and their script.

It may import Keras, and of the house label alone. Start reading in learner.py.
"""
