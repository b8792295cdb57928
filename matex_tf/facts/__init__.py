"""Facts: every name of Keras, tf_keras and TensorFlow that this package reads or wraps, and what for.

The tables are checked against the sources of any version, without an import of it (`matex-tf doctor --keras`).
It may import nothing. Start reading in fact.py.
"""
