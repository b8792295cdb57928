"""Batches that Python code makes on every rank, and not the same ones: all ranks take those of rank 0.

Each rank goes on making its own, so that what the script's code draws and counts stays what it would be. Rank 0 also
says where the data end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.sources.batch_ownership import Finding
from matex_tf.patches.sources.pipeline_ownership import Made

_SPECS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)


def has_the_say(finding: Finding, made: Made, spec: Any) -> bool:
    """Whether the first batch shows that ranks shall take rank 0's; the same on every rank.

    Args:
        finding: what it has shown.
        made: what the data are made of.
        spec: of a batch.
    """
    differs = bool(finding.differs) and not finding.own and made.python and settings.current().rows == "auto"
    return differs and world.current().guard is None and all(isinstance(one, _SPECS) for one in tf.nest.flatten(spec))


def batch(fetched: list[Any], spec: Any) -> Any:
    """Rank 0's batch; None where it has none any more. All ranks come here.

    Args:
        fetched: this rank's, or nothing.
        spec: of a batch.
    """
    mine = None
    if fetched and world.current().rank == 0:
        mine = [np.asarray(leaf) for leaf in tf.nest.flatten(fetched[0], expand_composites=True)]
    leaves = world.current().broadcast(mine, "take the batch of rank 0")
    if leaves is None:
        return None
    tensors = [tf.convert_to_tensor(leaf) for leaf in leaves]
    return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)
