"""The batches of a PyDataset are made by the ranks in turn, those of a generator once a node or by every rank.

Their rows travel to the others; so do the elements that a generator gives `from_generator` (elements.py). What the code
that makes them leaves behind is looked for in reach.py, what it asks of models is done by each rank alone
(data_threads.py).

It may import patches.common, patches.data and patches.sources. Start reading in pydatasets.py.
"""
