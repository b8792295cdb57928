"""Which channels of a Keras model belong together: worked out from its graph, layer by layer.

It may import nothing but itself, and Keras. Start reading in resized.py.
"""
