"""What a model is trained on: which rank gets which rows, and whose rows they are to begin with.

It may import patches.common, patches.sources and readers. Start reading in batches.py.
"""
