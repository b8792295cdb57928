"""The batches of a PyDataset are made by the ranks in turn, and their rows travel to the others.

It may import patches.common and patches.data. Start reading in pydatasets.py.
"""
