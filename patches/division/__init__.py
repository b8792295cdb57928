"""Work on the input is divided: a rank makes its rows of each batch, and the batches are those of one rank.

It may import patches.common and patches.data. Start reading in own_rows.py.
"""
