"""What Keras and NumPy write: once, whole, and under a path that all ranks know.

It may import patches.common and storage. Start reading in model_files.py.
"""
