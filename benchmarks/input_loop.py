"""A training loop of a script's own, for `benchmarks/input.py`: what its input costs a rank, and which rows it gets."""

from __future__ import annotations

import time
import zlib
from typing import Any

import numpy as np


def epochs(data: Any, count: int) -> tuple[list[tuple[float, float, int, int]], int]:
    """Train by hand.

    Args:
        data: batches of images and labels.
        count: epochs.

    Returns:
        For each epoch its seconds, those of CPU time, bytes of inputs that the pipeline has made, and bytes that this
        rank has used; and a checksum over all batches of the first epoch: their rows, in their order, over all ranks.
    """
    import keras
    import tensorflow as tf
    from tensorflow.python.data.ops import iterator_ops

    from matex_tf.core import world
    from matex_tf.patches.loops import position

    ranks, weight, optimizer = world.current(), tf.Variable(0.0), keras.optimizers.SGD(0.0)
    made = [0]
    original = iterator_ops.OwnedIterator._next_internal

    def next_internal(self: Any) -> Any:
        given = original(self)
        made[0] += sum(
            leaf.shape.num_elements() * leaf.dtype.size for leaf in tf.nest.flatten(given) if leaf.shape.rank == 4
        )
        return given

    iterator_ops.OwnedIterator._next_internal = next_internal

    @tf.function(reduce_retracing=True)
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = weight * tf.reduce_mean(x[:, 0, 0, 0])
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    taken: list[tuple[float, float, int, int]] = []
    rows_of: list[tuple[int, list[int]]] = []
    for epoch in range(count):
        begin, used = (time.perf_counter(), time.process_time(), made[0]), 0
        for x, y in data:
            kind, rows, total, _, _ = position.read() if not ranks.is_single else (position.WHOLE, len(x), len(x), 0, 0)
            counts = rows if kind == position.SPLIT else rows * (ranks.rank == 0)
            used += counts * int(np.prod(x.shape[1:])) * x.dtype.size
            if not epoch:
                leaves = x.numpy(), y.numpy()
                crcs = [zlib.crc32(b"".join(leaf[row].tobytes() for leaf in leaves)) for row in range(counts)]
                rows_of.append((total, crcs))
            step(x)
        taken.append((time.perf_counter() - begin[0], time.process_time() - begin[1], made[0] - begin[2], used))
    everyone = ranks.allgather(rows_of, "compare batches")
    batches = [[parts[0][0], *(row for _, rows in parts for row in rows)] for parts in zip(*everyone, strict=True)]
    return taken, zlib.crc32(repr(batches).encode())
