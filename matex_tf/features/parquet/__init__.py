"""Parquet, a format that `DataSet` reads.

It may import core and readers. Start reading in table.py.
"""

from matex_tf.features import Feature


def register() -> Feature:
    """What this feature adds."""
    return Feature(formats=("matex_tf.features.parquet.table",), package="matex_tf[data]")
