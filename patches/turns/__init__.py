"""The batches of a PyDataset are made by the ranks in turn, and those of a Python generator by every rank or once a node.
Their rows travel to the others.

It may import patches.common and patches.data. Start reading in pydatasets.py.
"""
