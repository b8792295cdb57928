"""Which axis counts rows: a traced graph once more, with the shapes that it has for a prime number of rows.

`inference.py` makes it, `shaped.py` holds it; `integers.py` and `affine.py`: integers that follow from shapes;
`lists.py`: lists of tensors. It may import patches.partition and its patterns. Start reading in inference.py.
"""
