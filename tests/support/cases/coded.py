"""The coded ring over MPI."""

from __future__ import annotations

import dataclasses
import zlib

import ml_dtypes
import numpy as np

from matex_tf import settings
from matex_tf.core import world
from matex_tf.exchange import process_group
from matex_tf.exchange.bucket import BucketPlan
from matex_tf.exchange.network import codec
from matex_tf.exchange.network.compressed_ring import CompressedRing
from matex_tf.exchange.network.lane import Lane
from tests.support.cases.exchange import on_hosts


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
    lane, ring = Lane(ranks.split_all()), CompressedRing(codec.create(name))
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


def exchanged(name, hosts, feedback=False, dtype="float32", steps=1, special=False):
    """Sums of gradients by the exchange, a small bucket, one of several chunks and whole numbers among them: what all
    steps added up to, what they should have, and the bits of the last."""
    ranks = on_hosts(hosts)
    shapes = [(40_000,), (1 << 21,), (20_000,)]
    dtypes = [np.dtype(getattr(ml_dtypes, dtype, dtype))] * 2 + [np.dtype("int32")]
    before = settings.use(dataclasses.replace(settings.current(), codec=name, error_feedback=feedback, bucket_mb=16))
    try:
        empty = [np.empty(shape, kind) for shape, kind in zip(shapes, dtypes, strict=True)]
        plan = BucketPlan.of("sum coded", ["a", "b", "c"], empty, True)
    finally:
        settings.use(before)
    given = [
        [np.random.default_rng([rank, place]).normal(size=shape) * 100 for place, shape in enumerate(shapes)]
        for rank in range(ranks.size)
    ]
    given = [[part.astype(kind) for part, kind in zip(parts, dtypes, strict=True)] for parts in given]
    if special:
        given[1][1][[5, 1 << 20]] = np.nan, np.inf
    wide = [sum(parts[place].astype(np.float64) for parts in given) for place in range(3)]
    totals, bits = [0.0, 0.0, 0.0], b""
    for _ in range(steps):
        got = process_group.sum_planned(ranks, plan, given[ranks.rank])
        totals = [total + one.astype(np.float64) for total, one in zip(totals, got, strict=True)]
        bits = b"".join(one.tobytes() for one in got)
    ranks.free()
    largest = [float(np.nanmax(np.abs(np.where(np.isfinite(one), one, 0)))) for one in wide]
    if special:
        said = totals[1][[5, 1 << 20]].tolist()
        totals[1][[5, 1 << 20]] = wide[1][[5, 1 << 20]] = 0
        return said, bool(np.isfinite(totals[1]).all()), zlib.crc32(bits)
    off = [float(np.abs(a - steps * b).max() / most) for a, b, most in zip(totals, wide, largest, strict=True)]
    return off, zlib.crc32(bits)
