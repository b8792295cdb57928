"""Work on the input is divided: a rank makes its rows of each batch, and the batches are those of one rank.

It may import patches.common, patches.data and patches.sources. Start reading in own_rows.py.
"""
