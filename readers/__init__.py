"""Files to arrays: what a script loads its own part of the data with.

It may import core. Start reading in dataset.py.
"""

from matex_tf.errors import DataError
from matex_tf.readers.dataset import DataSet
from matex_tf.readers.shard import Shard

__all__ = ["DataError", "DataSet", "Shard"]
