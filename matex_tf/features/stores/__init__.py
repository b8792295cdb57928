"""Zarr stores, and datasets of xarray, for `DataSet`.

It may import core and readers. Start reading in arrays.py.
"""

from matex_tf.features import Feature


def register() -> Feature:
    """What this feature adds."""
    return Feature(formats=("matex_tf.features.stores.arrays",), package="matex_tf[stores]")
