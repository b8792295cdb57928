"""How bytes move between ranks: numpy, a transport and the one TensorFlow op that calls them. Knows nothing of Keras.

It may import core. Start reading in tf_op.py.
"""
