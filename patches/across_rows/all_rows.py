"""`matex_tf.all_rows`: the rows of the whole batch, for losses of a script's own that look across rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from matex_tf.patches.across_rows import gathered_batch
from matex_tf.patches.common import batch_share, log_once

_LABEL = "matex_tf.all_rows"


def all_rows(value: Any) -> Any:
    """The rows of all ranks, in the order of the batch, for a loss that compares rows.

    In a training step each rank has its rows of the batch. A contrastive loss, or one with in-batch negatives or mined
    pairs, needs all of them: compute it from `all_rows(embeddings)` and `all_rows(labels)`, and every rank has the loss
    of the whole batch. Gradients go back to the rank that has the row, and the weights are those of one rank, be the
    loss a mean or a sum over what was gathered.

    Every rank must call it in the same order. On one rank, outside of a step, and where each rank has the whole batch
    already, it returns what it gets. With `--strategy gossip`, whose ranks do not wait in a step, it returns the rank's
    own rows.

    Args:
        value: a tensor of shape (rows of this rank, …) and any dtype, or a nested structure of such.

    Returns:
        The same with shape (rows of the batch, …).

    Raises:
        RanksDisagree: the ranks call it for tensors of different dtypes or shapes of a row, or not all call it.
    """
    part = batch_share.current()
    if part is None:
        return value
    if part.apart:
        log_once.log(
            "matex_tf.all_rows gives each rank its own rows only: with this --strategy ranks do not wait in a step. "
            "Take --strategy sync"
        )
        return value
    return tf.nest.map_structure(lambda one: gathered_batch.gather(one, part, _LABEL)[0], value)
