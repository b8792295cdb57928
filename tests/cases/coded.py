"""The coded ring over MPI."""

from __future__ import annotations

import numpy as np

from matex_tf import world
from matex_tf.exchange import codec
from matex_tf.exchange.coded import CodedRing
from matex_tf.exchange.network import Lane


def part(rank, count):
    """What a rank gives: from 0.001 to 1000, a NaN and an infinity among it."""
    random = np.random.default_rng(rank)
    values = (random.normal(size=count) * 10.0 ** random.integers(-3, 3, count)).astype(np.float32)
    if rank == 1:
        values[[0, count - 1]] = np.nan, -np.inf
    return values


def summed(name, count, pieces=3, steps=2):
    """This rank's sums of some steps, several pieces under way at a time, with error feedback; as bits."""
    ranks = world.current()
    lane, ring = Lane(ranks.split(0)), CodedRing(codec.create(name))
    residual, results = np.zeros(count, np.float32), []
    for _ in range(steps):
        data = part(ranks.rank, count)
        for tag, (piece, left) in enumerate(
            zip(np.array_split(data, pieces), np.array_split(residual, pieces), strict=True)
        ):
            lane._under_way.append((ring(lane, piece, tag, left), []))
        lane.finish()
        results.append(data)
    lane.close()
    return results, len(ring._free)
