"""The batches of a PyDataset are made by the ranks in turn, those of a generator by every rank or once a node.

Their rows travel to the others. It may import patches.common and patches.data. Start reading in pydatasets.py.
"""
