"""What is recognized in the graph of a step before its ops are labelled.

`sparse.py`: gradients that are values and indices; `squares.py`: means and variances, which travel together;
`fixed_rows.py`: numbers that count the rows of a batch.

It may import patches.partition and its rules. Start reading in squares.py.
"""
