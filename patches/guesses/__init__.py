"""Whose rows data hold: the same on every rank, to be shared out, or each rank's own.

`pipeline` looks at what a tf.data pipeline is made of, `batch` at the content of a first batch.
"""
