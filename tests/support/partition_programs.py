"""Random programs over the rows of a batch for the partitioner: `python -m tests.support.partition_programs`.

Where `partition_fuzz` draws layers of Keras, this draws ops that mix rows: slices, shuffles, matrices of pairs, loops,
and their gradients. A program is drawn while it runs eagerly, for batches of several sizes; then it is traced, and
compared on ranks that are threads with one rank. It prints a line for each program that differs, and its seed.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf

from matex_tf.patches.partition.labels import CannotPartition
from tests.support import fuzzing
from tests.support.partition import Ranks, cut

SIZES = (9, 5, 2, 1)
TOLERANCE = 1e-8
D = tf.float64
#: An op: how many tensors it takes, and a function of them and of an integer that chooses among its forms.
OPS: list[tuple[int, Callable[..., Any]]] = []


def op(count: int) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        OPS.append((count, function))
        return function

    return register


def rows(x: Any) -> Any:
    """The first size of a tensor, as a script asks for it."""
    return tf.shape(x)[0]


def axis(x: Any, k: int) -> int:
    return k % max(len(x.shape), 1)


def pick(k: int, *forms: Callable[[], Any]) -> Any:
    return forms[k % len(forms)]()


@op(1)
def reduced(k: int, x: Any) -> Any:
    at, keep = axis(x, k // 7), bool(k // 64 % 2)
    some = [tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min, tf.math.reduce_std, tf.reduce_logsumexp]
    return some[k % 6](x, at if k % 5 else None, keepdims=keep)


@op(1)
def normed(k: int, x: Any) -> Any:
    at = axis(x, k // 8)
    return pick(
        k,
        lambda: tf.nn.softmax(x, at),
        lambda: tf.math.l2_normalize(x, at, 1e-3),
        lambda: x - tf.reduce_mean(x, at, keepdims=True),
        lambda: tf.nn.log_softmax(x, at),
        lambda: x / (1.0 + tf.norm(x, axis=at, keepdims=True)),
        lambda: tf.cumsum(x, at, reverse=bool(k // 32 % 2), exclusive=bool(k // 64 % 2)),
        lambda: tf.reverse(x, [at]) if len(x.shape) else x,  # TensorFlow reverses no scalar in a graph
        lambda: tf.roll(x, k % 3 - 1, at),
    )


@op(1)
def sliced(k: int, x: Any) -> Any:
    return pick(
        k,
        lambda: x[1:],
        lambda: x[:-1],
        lambda: x[::2],
        lambda: x[: rows(x) // 2 + 1],
        lambda: x[rows(x) // 2 :],
        lambda: x[0],
        lambda: x[-1:],
        lambda: x[..., :2],
        lambda: x[..., 0],
        lambda: x[:, None],
        lambda: x[None],
        lambda: x[: tf.minimum(rows(x), 3)],
        lambda: x[:, :1],
        lambda: x[rows(x) - 1],
        lambda: x[:, : rows(x)],
        lambda: tf.gather(x, [0, 0]),
    )


@op(1)
def moved(k: int, x: Any) -> Any:
    n = len(x.shape)
    order = list(range(n))
    random.Random(k).shuffle(order)
    return pick(
        k,
        lambda: tf.transpose(x, order),
        lambda: tf.transpose(x),
        lambda: tf.reshape(x, [-1]),
        lambda: tf.reshape(x, [rows(x), -1]),
        lambda: tf.reshape(x, [-1, tf.shape(x)[-1]]),
        lambda: tf.tile(x, [2] + [1] * (n - 1)),
        lambda: tf.tile(x[:, None], [1, rows(x)] + [1] * (n - 1)),
        lambda: tf.repeat(x, 2, axis(x, k // 16)),
        lambda: tf.repeat(x, rows(x), 0),
        lambda: tf.expand_dims(x, axis(x, k // 16)),
        lambda: tf.squeeze(x[:, None], 1),
        lambda: tf.pad(x, [[k // 16 % 2, k // 32 % 2]] + [[0, 0]] * (n - 1)),
        lambda: tf.stack([x, -x], axis(x, k // 16)),
        lambda: tf.concat([x, 2 * x], axis(x, k // 16)),
        lambda: tf.broadcast_to(x, tf.concat([[rows(x)], tf.shape(x)], 0)),
    )


@op(1)
def ordered(k: int, x: Any) -> Any:
    flat = tf.reshape(x, [-1])
    even = tf.round(x * 1e6)  # the order of equal numbers is that of places, and not of what rounding makes of them
    return pick(
        k,
        lambda: tf.sort(x, axis(x, k // 16)),
        lambda: tf.gather(x, tf.argsort(tf.reduce_sum(tf.reshape(even, [rows(x), -1]), 1))),
        lambda: tf.cast(tf.argsort(even, axis(x, k // 16)), D),
        lambda: tf.math.top_k(x, 1).values,
        lambda: tf.math.top_k(flat, tf.size(flat) // 2 + 1).values,
        lambda: tf.cast(tf.argmax(even, axis(x, k // 16)), D),
        lambda: tf.gather(x, tf.argmax(tf.reshape(even, [-1])) % tf.cast(rows(x), tf.int64)),
        lambda: tf.boolean_mask(x, tf.reduce_sum(tf.reshape(x, [rows(x), -1]), 1) > 0),
        lambda: tf.gather_nd(x, tf.where(tf.reduce_sum(tf.reshape(x, [rows(x), -1]), 1) > 0)),
        lambda: tf.gather(x, tf.range(rows(x) - 1, -1, -1)),
        lambda: tf.gather(x, [0], axis=axis(x, k // 16)),
        lambda: tf.one_hot(tf.argmax(even, -1), 3, dtype=D),
        lambda: tf.one_hot(tf.argmax(even, 0), rows(x), dtype=D),
    )


@op(1)
def matrix(k: int, x: Any) -> Any:
    flat = tf.reshape(x, [rows(x), -1])
    eye = tf.eye(rows(x), dtype=D)
    pairs = flat @ tf.transpose(flat)
    return pick(
        k,
        lambda: pairs,
        lambda: tf.reduce_sum((flat[:, None] - flat[None]) ** 2, -1),
        lambda: pairs * (1 - eye),
        lambda: tf.linalg.set_diag(pairs, tf.zeros_like(pairs[0])),
        lambda: tf.linalg.diag_part(pairs),
        lambda: tf.linalg.band_part(pairs, -1, 0),
        lambda: tf.linalg.solve(pairs + 3 * eye, flat),
        lambda: tf.where(tf.cast(eye, tf.bool), pairs, tf.zeros_like(pairs)),
        lambda: tf.linalg.diag(flat[:, 0]),
        lambda: tf.matmul(flat, flat, transpose_a=True),
        lambda: tf.einsum("ia,ib->ab", flat, flat),
        lambda: tf.einsum("ia,ja->ij", flat, flat),
        lambda: tf.einsum("ia,ja->ija", flat, flat),
        lambda: tf.linalg.cholesky(pairs + 3 * eye),
    )


@op(1)
def looped(k: int, x: Any) -> Any:
    width = tf.zeros_like(x[0])
    return pick(
        k,
        lambda: tf.map_fn(lambda row: tf.nn.softplus(row) - tf.reduce_mean(row), x),
        lambda: tf.scan(lambda a, row: 0.5 * a + tf.tanh(row), x, width),
        lambda: tf.foldl(lambda a, row: tf.tanh(a + row), x, width),
        lambda: tf.while_loop(
            lambda i, v: (i < 4) & (tf.reduce_mean(v) < 1.0), lambda i, v: (i + 1, 1.2 * v + 0.1), [0, x]
        )[1],
        lambda: tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, tf.tanh(v - tf.reduce_mean(v, 0))), [0, x])[1],
        lambda: tf.cond(tf.reduce_mean(x) > 0, lambda: 2 * x, lambda: x - tf.reduce_mean(x, 0)),
        lambda: tf.cond(tf.reduce_max(x) > 1, lambda: tf.reduce_mean(x), lambda: tf.reduce_sum(x)),
        lambda: tf.while_loop(lambda i, a: i < rows(x), lambda i, a: (i + 1, 0.5 * a + x[i]), [0, width])[1],
        lambda: tf.vectorized_map(lambda row: row / (1 + tf.reduce_sum(row**2)), x),
    )


@op(2)
def together(k: int, x: Any, y: Any) -> Any:
    return pick(
        k,
        lambda: x + y,
        lambda: x * y,
        lambda: x - y,
        lambda: tf.maximum(x, y),
        lambda: x / (1 + y**2),
        lambda: tf.where(x > y, x, -y),
        lambda: tf.concat([x, y], axis(x, k // 16)),
        lambda: tf.stack([x, y], axis(x, k // 16)),
        lambda: tf.matmul(x, y),
        lambda: tf.matmul(x, y, transpose_b=True),
        lambda: tf.matmul(x, y, transpose_a=True),
        lambda: tf.tensordot(x, y, 1),
        lambda: x[:, None] * y[None],
        lambda: tf.squared_difference(x, y),
        lambda: tf.einsum("i...,i...->i", x, y),
    )


@op(2)
def indexed(k: int, x: Any, y: Any) -> Any:
    ids = tf.cast(tf.clip_by_value(tf.reduce_sum(tf.reshape(y, [rows(y), -1]), 1) + 1, 0, 2), tf.int32)
    return pick(
        k,
        lambda: tf.math.unsorted_segment_sum(x, ids, 3),
        lambda: tf.math.unsorted_segment_mean(x, ids, 3),
        lambda: tf.math.unsorted_segment_max(x, ids, 3) * 0.01,
        lambda: tf.gather(tf.math.unsorted_segment_sum(x, ids, 3), ids),
        lambda: tf.gather(x, ids % rows(x)),
        lambda: tf.scatter_nd(ids[:, None], x, tf.concat([[3], tf.shape(x)[1:]], 0)),
        lambda: tf.tensor_scatter_nd_add(x, (ids % rows(x))[:, None], x),
        lambda: tf.cast(tf.math.bincount(ids, minlength=3, maxlength=3), D),
        lambda: tf.concat(tf.dynamic_partition(x, ids, 3), 0),
        lambda: tf.gather(x, tf.clip_by_value(ids, 0, tf.shape(x)[1] - 1), axis=1, batch_dims=1),
        lambda: tf.nn.sparse_softmax_cross_entropy_with_logits(tf.zeros_like(ids), x),
        lambda: tf.boolean_mask(x, ids > 0),
        lambda: tf.reduce_sum(tf.one_hot(ids, 3, dtype=D), 0),
    )


@op(1)
def drawn(k: int, x: Any) -> Any:
    return pick(
        k,
        lambda: x + tf.random.stateless_normal(tf.shape(x), [k, 1], dtype=D),
        lambda: x * tf.random.stateless_uniform([rows(x)] + [1] * (len(x.shape) - 1), [k, 1], dtype=D),
        lambda: tf.gather(x, tf.random.experimental.stateless_shuffle(tf.range(rows(x)), [k, 2])),
        lambda: tf.nn.experimental.stateless_dropout(x, 0.4, [k, 3]),
        lambda: x + tf.ones([rows(x)] + [1] * (len(x.shape) - 1), D),
        lambda: tf.zeros_like(x) + tf.cast(tf.range(rows(x)), D)[0],
        lambda: x * tf.cast(rows(x), D) / 5,
    )


@op(3)
def totals(k: int, x: Any, y: Any, z: Any) -> Any:
    """What is linear in sums over rows: they stay parts until something else is made of them."""
    mean, scale = tf.reduce_mean(y), tf.exp(tf.reduce_mean(z))
    a, b, c = tf.reduce_sum(x) / 9, tf.reduce_sum(tf.abs(x - mean)) / 9, tf.reduce_mean(tf.square(z))
    some = [[a, b, scale], [a, c, b], [scale, b, a], [a, a, mean], [b, c, scale]][k // 16 % 5]
    return pick(
        k,
        lambda: tf.stack(some),
        lambda: tf.add_n(some),
        lambda: tf.concat([[one, 2 * one] for one in some], 0),
        lambda: some[0] + some[1] - some[2],
        lambda: tf.stack(some) * [1.0, -2.0, 0.5] + some[0],
        lambda: tf.reduce_sum(tf.stack(some) * scale),
        lambda: tf.maximum(some[0] - some[1], some[2]),
        lambda: tf.where(mean > 0, some[0], some[1]) + some[2],
        lambda: tf.cond(mean > 0, lambda: some[0] + some[2], lambda: some[1]),
        lambda: tf.reshape(tf.stack([*some, a]), [2, 2]) @ tf.constant([[1.0], [3.0]], D),
        lambda: tf.reduce_mean(tf.stack([tf.stack(some), tf.stack(some[::-1])]), k // 128 % 2),
        lambda: some[0] / (1 + tf.abs(some[1])) + some[2],
        lambda: tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v + some[0]), [0, some[1]])[1],
        lambda: tf.reduce_sum(x, 0) + tf.reduce_sum(x - mean, 0) * scale,
        lambda: tf.reduce_mean(x, 0) * some[0],
        lambda: tf.gather(tf.stack(some), [2, 0]),
    )


class Program:
    """Ops drawn from a seed, that do for batches of each size."""

    def __init__(self, seed: int, length: int = 7):
        draw = random.Random(seed)
        self.steps: list[tuple[int, int, list[int]]] = []
        held = [self._begin(*one) for one in self._batches()]
        while len(self.steps) < length:
            which, k = draw.randrange(len(OPS)), draw.randrange(1 << 16)
            last = len(held[0]) - 1
            near = [draw.randint(max(0, last - 3), last) for _ in range(OPS[which][0])]
            try:
                made = [self._apply(which, k, [values[i] for i in near]) for values in held]
            except Exception:
                continue
            if any(one.shape.rank > 3 or tf.size(one) > 4000 or not _is_small(one) for one in made):
                continue
            self.steps.append((which, k, near))
            for values, one in zip(held, made, strict=True):
                values.append(one)

    def _batches(self) -> list[Any]:
        return [batch(size, 1) for size in (*SIZES, 17)]

    def _begin(self, x: Any, y: Any, w: Any) -> list[Any]:
        return [x, x @ w, tf.cast(y, D), tf.tanh(x)]

    def _apply(self, which: int, k: int, given: Sequence[Any]) -> Any:
        made = OPS[which][1](k, *given)
        if made.dtype != D:
            return tf.cast(made, D)
        return tf.tanh(made) if k // 1024 % 4 else 0.5 * made  # what is linear leaves sums over rows parts

    def __call__(self, x: Any, y: Any) -> Any:
        """Of a batch: a loss, its gradients, and what the program has made."""
        w = tf.constant(WEIGHT)
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            values = self._begin(x, y, w)
            for which, k, near in self.steps:
                values.append(self._apply(which, k, [values[i] for i in near]))
            loss = tf.add_n([tf.reduce_mean(value**2) for value in values[-3:]])
        gradients = tape.gradient(loss, [x, w], unconnected_gradients="zero")
        return [loss, *map(tf.convert_to_tensor, gradients), *values[4:]]

    def __str__(self) -> str:
        return "; ".join(f"{OPS[which][1].__name__}({k % 16}/{k}, {near})" for which, k, near in self.steps)


class OfAnyLength(Program):
    """The same, for batches whose rows have other lengths."""

    def _batches(self) -> list[Any]:
        return [batch(size, 1, length) for size, length in ((9, 11), (5, 16), (2, 12), (17, 40), (3, 9))]

    def _begin(self, x: Any, y: Any, w: Any) -> list[Any]:
        return [x, x[:, :6] @ w, tf.cast(y, D), tf.tanh(x)]


WEIGHT = np.random.RandomState(0).randn(6, 3) * 0.5


def batch(size: int, seed: int, length: int = 6) -> list[Any]:
    generator = np.random.RandomState(seed + size)
    return [tf.constant(generator.randn(size, length)), tf.constant(generator.randint(0, 3, size)), tf.constant(WEIGHT)]


def _is_small(value: Any) -> bool:
    return bool(tf.reduce_all(tf.abs(value) < 100.0))


def failure(seed: int, ranks: int = 3) -> str:
    """What is wrong with the program of a seed; "" if nothing is."""
    return _failure(Program(seed), seed, ranks, [(size, 6) for size in SIZES])


def failure_of_lengths(seed: int, ranks: int = 3) -> str:
    """What is wrong with the program of a seed, rebuilt for batches of any length."""
    lengths = [[tf.TensorShape([None, length]), tf.TensorShape([None])] for length in (12, 20)]
    return _failure(OfAnyLength(seed, 5), seed, ranks, [(9, 13), (5, 11), (2, 64), (1, 31), (7, 333)], lengths)


def _failure(
    program: Program, seed: int, ranks: int, sizes: Sequence[tuple[int, int]], lengths: Sequence[Any] = ()
) -> str:
    specs = [tf.TensorSpec([None, None if lengths else 6], D), tf.TensorSpec([None], tf.int64)]
    generator = np.random.RandomState(seed)
    try:
        traced = tf.function(program.__call__, autograph=False).get_concrete_function(*specs)
        several = Ranks(ranks, lambda rank: traced, [True, True], lengths=lengths)
        if lengths:
            try:
                several.steps[0].graph()
            except Exception:  # it is rebuilt for each length
                return ""
        for size, length in sizes:
            x, y, _ = batch(size, 7, length)
            try:
                wanted = traced(x, y)
            except tf.errors.OpError:
                continue  # one rank cannot do it either
            for got in several([x, y], cut(size, ranks, generator)):
                for place, (one, other) in enumerate(zip(got, wanted, strict=True)):
                    if one.shape != tuple(other.shape) or not np.allclose(one, other, 0, TOLERANCE, equal_nan=True):
                        what = f"output {place} of {size} rows of {length}"
                        return f"{what} differs: {str(one)[:80]}, {str(other.numpy())[:80]}\n    {program}"
    except CannotPartition:
        return ""  # every rank computes it whole, and a line says so
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[-700:]}\n    {program}"
    return ""


def told(seed: int) -> str:
    """What is wrong with either."""
    return failure(seed) or failure_of_lengths(seed)


if __name__ == "__main__":
    sys.exit(fuzzing.main("Random programs on ranks that are threads, beside one rank.", "programs", told))
