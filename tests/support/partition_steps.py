"""Training steps as people write them, for the partitioner: each is compared with one rank on ragged batches.

A step is a function that makes its variables and returns them with the function of a batch, which gives logs. Batches
are `x`, 12 float64 numbers a row, and `y`, one integer below 4 a row. Steps of Keras' own are in partition_keras.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

STEPS: dict[str, Callable[[], Any]] = {}
D = tf.float64
#: Steps with an op that knows no float64.
IN_32_BITS = ("alignments",)


def step(function: Callable[[], Any]) -> Callable[[], Any]:
    STEPS[function.__name__] = function
    return function


def weight(*shape: int, seed: int = 0) -> Any:
    return tf.Variable(np.random.RandomState(seed).randn(*shape) * 0.4, dtype=D)


def descend(tape: Any, loss: Any, weights: list[Any], rate: float = 0.1) -> list[Any]:
    gradients = tape.gradient(loss, weights)
    for w, g in zip(weights, gradients, strict=True):
        if g is not None:
            w.assign_sub(rate * tf.convert_to_tensor(g))
    return gradients


def crossentropy(y: Any, logits: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(y, [-1]), logits)


@step
def looked_up_by_row() -> Any:
    """Look-ups with batch dimensions, and `take_along_axis` of Keras: what goes back is of each row's own."""
    import keras

    w, v = weight(12, 12), weight(3, 2)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            table = tf.reshape(x @ w, [-1, 4, 3])
            largest = tf.argsort(tf.reduce_sum(table, -1), -1)[:, :2]
            of_two = tf.reshape(table, [-1, 2, 2, 3])
            first = tf.reduce_mean(tf.gather(table, largest, axis=1, batch_dims=1), 1)
            second = tf.reduce_sum(tf.gather(of_two, tf.argmax(of_two, 2), axis=2, batch_dims=2), [1, 2])
            third = keras.ops.take_along_axis(table, keras.ops.argsort(table, axis=1)[:, -1:], axis=1)[:, 0]
            fourth = tf.gather(table, largest % 3, axis=2, batch_dims=1)[:, 0]
            loss = tf.reduce_mean(tf.square((first + 0.1 * second[:, :3] + third) @ v - fourth))
        descend(tape, loss, [w, v])
        return {"loss": loss}

    return [w, v], run


@step
def vq_vae() -> Any:
    """A code book that follows moving averages of what was assigned to each code."""
    w, book, counts, sums = weight(12, 3), weight(5, 3, seed=1), tf.Variable(tf.ones(5, D)), weight(5, 3, seed=1)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            z = x @ w
            distance = tf.reduce_sum((z[:, None] - book[None]) ** 2, -1)
            code = tf.argmin(distance, 1)
            quantized = tf.gather(book, code)
            loss = tf.reduce_mean((z - tf.stop_gradient(quantized)) ** 2)
        hot = tf.one_hot(code, 5, dtype=D)
        counts.assign(0.9 * counts + 0.1 * tf.reduce_sum(hot, 0))
        sums.assign(0.9 * sums + 0.1 * tf.matmul(hot, z, transpose_a=True))
        book.assign(sums / counts[:, None])
        descend(tape, loss, [w])
        used = tf.reduce_mean(hot, 0)
        return {"loss": loss, "perplexity": tf.exp(-tf.reduce_sum(used * tf.math.log(used + 1e-10)))}

    return [w, book, counts, sums], run


@step
def moco() -> Any:
    """A queue of keys, the newest of which push out the oldest; a slow copy of the encoder."""
    q, k, queue = weight(12, 4), weight(12, 4), weight(30, 4, seed=2)

    def run(x: Any, y: Any) -> Any:
        keys = tf.math.l2_normalize(x @ k, 1)
        with tf.GradientTape() as tape:
            queries = tf.math.l2_normalize((x + 0.1) @ q, 1)
            positive = tf.reduce_sum(queries * keys, 1, keepdims=True)
            logits = tf.concat([positive, queries @ tf.transpose(queue)], 1)
            loss = tf.reduce_mean(crossentropy(tf.zeros([tf.shape(x)[0]], tf.int32), logits))
        queue.assign(tf.concat([keys, queue], 0)[:30])
        descend(tape, loss, [q])
        k.assign(0.9 * k + 0.1 * q)
        return {"loss": loss}

    return [q, k, queue], run


@step
def nnclr() -> Any:
    """The nearest of a support set stands for the other view."""
    w, support = weight(12, 4), weight(20, 4, seed=2)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            a, b = tf.math.l2_normalize(x @ w, 1), tf.math.l2_normalize((x * x) @ w, 1)
            nearest = tf.gather(support, tf.argmax(tf.matmul(a, support, transpose_b=True), 1))
            logits = tf.matmul(nearest, b, transpose_b=True) / 0.2
            labels = tf.range(tf.shape(logits)[0])
            loss = tf.reduce_mean(crossentropy(labels, logits)) + tf.reduce_mean(
                crossentropy(labels, tf.transpose(logits))
            )
        support.assign(
            tf.concat([a, support[: 20 - tf.shape(a)[0]]], 0) if x.shape[0] else tf.concat([a, support], 0)[:20]
        )
        descend(tape, loss, [w])
        right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, tf.int32), labels), D))
        return {"loss": loss, "right": right}

    return [w, support], run


@step
def centralized() -> Any:
    """Gradients less their mean, clipped by hand; norms in the logs."""
    w, b = weight(12, 4), weight(4)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(crossentropy(y, x @ w + b))
        g, h = tape.gradient(loss, [w, b])
        g = g - tf.reduce_mean(g, 0, keepdims=True)
        norm = tf.sqrt(tf.reduce_sum(g**2) + tf.reduce_sum(h**2))
        scale = tf.minimum(tf.constant(1.0, D), 0.1 / norm)
        w.assign_sub(g * scale)
        b.assign_sub(tf.clip_by_value(h, -0.01, 0.01))
        return {"loss": loss, "norm": norm, "largest": tf.reduce_max(tf.abs(g))}

    return [w, b], run


@step
def lookahead() -> Any:
    """Slow weights every second step."""
    w, slow, count = weight(12, 4), weight(12, 4), tf.Variable(0, dtype=tf.int64)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(crossentropy(y, x @ w))
        descend(tape, loss, [w])
        count.assign_add(1)

        def join() -> Any:
            slow.assign_add(0.5 * (w - slow))
            w.assign(slow)
            return tf.constant(1)

        joined = tf.cond(count % 2 == 0, join, lambda: tf.constant(0))
        return {"loss": loss, "joined": tf.cast(joined, D)}

    return [w, slow, count], run


@step
def sam() -> Any:
    """Sharpness-aware: the gradient at the worst point near by."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(crossentropy(y, tf.tanh(x @ w)))
        g = tape.gradient(loss, w)
        e = 0.05 * g / (tf.norm(g) + 1e-12)
        w.assign_add(e)
        with tf.GradientTape() as tape:
            second = tf.reduce_mean(crossentropy(y, tf.tanh(x @ w)))
        g = tape.gradient(second, w)
        w.assign_sub(e)
        w.assign_sub(0.1 * g)
        return {"loss": loss, "second": second}

    return [w], run


@step
def nt_xent() -> Any:
    """Two views in one batch: each row's other view is the right one of 2n - 1."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        n = tf.shape(x)[0]
        with tf.GradientTape() as tape:
            z = tf.math.l2_normalize(tf.concat([x, x + 0.3 * x * x], 0) @ w, 1)
            logits = tf.matmul(z, z, transpose_b=True) / 0.5 - 1e9 * tf.eye(2 * n, dtype=D)
            labels = tf.concat([tf.range(n) + n, tf.range(n)], 0)
            loss = tf.reduce_mean(crossentropy(labels, logits))
        descend(tape, loss, [w])
        return {"loss": loss}

    return [w], run


@step
def clip() -> Any:
    """Images and texts, a temperature that is learned."""
    a, b, t = weight(6, 4), weight(6, 4, seed=1), tf.Variable(1.0, dtype=D)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            image, text = tf.math.l2_normalize(x[:, :6] @ a, 1), tf.math.l2_normalize(x[:, 6:] @ b, 1)
            logits = tf.exp(t) * tf.matmul(image, text, transpose_b=True)
            labels = tf.range(tf.shape(x)[0])
            loss = (
                tf.reduce_mean(crossentropy(labels, logits))
                + tf.reduce_mean(crossentropy(labels, tf.transpose(logits)))
            ) / 2
        descend(tape, loss, [a, b, t])
        return {"loss": loss}

    return [a, b, t], run


@step
def barlow_twins() -> Any:
    """The cross-correlation of two views, normalized over the batch."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            views = [x @ w, tf.tanh(x) @ w]
            a, b = ((v - tf.reduce_mean(v, 0)) / (tf.math.reduce_std(v, 0) + 1e-3) for v in views)
            c = tf.matmul(a, b, transpose_a=True) / tf.cast(tf.shape(x)[0], D)
            on = tf.reduce_sum((tf.linalg.diag_part(c) - 1) ** 2)
            off = tf.reduce_sum(tf.linalg.set_diag(c, tf.zeros(4, D)) ** 2)
            loss = on + 0.01 * off
        descend(tape, loss, [w], 0.01)
        return {"loss": loss}

    return [w], run


@step
def vicreg() -> Any:
    """Variance, invariance and covariance over the batch."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            a, b = x @ w, tf.sin(x) @ w
            loss = tf.reduce_mean((a - b) ** 2)
            for v in (a, b):
                v = v - tf.reduce_mean(v, 0)
                loss += tf.reduce_mean(tf.nn.relu(1 - tf.sqrt(tf.reduce_mean(v**2, 0) + 1e-4)))
                c = tf.matmul(v, v, transpose_a=True) / (tf.cast(tf.shape(v)[0], D) - 0.5)
                loss += (tf.reduce_sum(c**2) - tf.reduce_sum(tf.linalg.diag_part(c) ** 2)) / 4
        descend(tape, loss, [w], 0.01)
        return {"loss": loss}

    return [w], run


@step
def dice() -> Any:
    """A ratio of sums over all rows and pixels."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            p, true = tf.sigmoid(x @ w), tf.one_hot(tf.reshape(y, [-1]), 4, dtype=D)
            loss = 1 - (2 * tf.reduce_sum(p * true) + 1) / (tf.reduce_sum(p) + tf.reduce_sum(true) + 1)
        descend(tape, loss, [w])
        return {"loss": loss}

    return [w], run


@step
def alignments() -> Any:
    """`tf.nn.ctc_loss`, which calls functions by ops that have their names as types; it knows 32 bits alone."""
    w = weight(4, 6)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.cast(tf.reshape(x, [-1, 3, 4]) @ w, tf.float32)
            count = tf.shape(y)[0]
            labels = tf.concat([y + 1, tf.zeros_like(y)], 1)
            losses = tf.nn.ctc_loss(labels, logits, tf.fill([count], 1), tf.fill([count], 3), False, blank_index=0)
            loss = tf.reduce_mean(tf.cast(losses, D))
        descend(tape, loss, [w])
        return {"loss": loss, "largest": tf.reduce_max(losses)}

    return [w], run


@step
def masked_tokens() -> Any:
    """A loss over tokens that divides by how many count, and one over those alone (`boolean_mask`)."""
    w = weight(1, 4)

    def run(x: Any, y: Any) -> Any:
        tokens = tf.cast(x * 4, tf.int32) % 4
        mask = tf.cast(tokens != 0, D)
        with tf.GradientTape() as tape:
            logits = x[..., None] @ w
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(tokens, logits)
            loss = tf.reduce_sum(each * mask) / tf.maximum(tf.reduce_sum(mask), 1)
            loss += tf.reduce_mean(tf.boolean_mask(each, tokens > 1))
        descend(tape, loss, [w])
        return {"loss": loss, "share": tf.reduce_sum(mask) / tf.cast(tf.size(mask), D)}

    return [w], run


@step
def metrics_of_metrics() -> Any:
    """Metrics that read others: F1 of precision and recall, the best accuracy so far, a rate of rows."""
    w = weight(12, 4)
    right, count, best, mean = (tf.Variable(0.0, dtype=D) for _ in range(4))

    def run(x: Any, y: Any) -> Any:
        label = tf.reshape(y, [-1])
        with tf.GradientTape() as tape:
            logits = x @ w
            loss = tf.reduce_mean(crossentropy(y, logits))
        hit = tf.cast(tf.equal(tf.argmax(logits, 1, tf.int32), label), D)
        right.assign_add(tf.reduce_sum(hit))
        count.assign_add(tf.cast(tf.shape(x)[0], D))
        accuracy = right / count
        best.assign(tf.maximum(best, accuracy))
        mean.assign(mean + (tf.reduce_mean(hit) - mean) * 0.5)
        descend(tape, loss, [w])
        f1 = tf.math.divide_no_nan(2 * accuracy * best, accuracy + best)
        return {"loss": loss, "accuracy": accuracy, "best": best.read_value(), "f1": f1, "perplexity": tf.exp(loss)}

    return [w, right, count, best, mean], run


@step
def wgan_gp() -> Any:
    """Two networks in turn; the norm of a gradient between real and made rows."""
    g, d, e = weight(12, 12), weight(12, 5, seed=1), weight(5, 1, seed=2)

    def judge(x: Any) -> Any:
        return tf.tanh(x @ d) @ e

    def run(x: Any, y: Any) -> Any:
        noise = tf.sin(tf.cast(tf.reshape(tf.range(tf.shape(x)[0] * 12), [-1, 12]), D))
        with tf.GradientTape() as tape:
            made = noise @ g
            mix = 0.3 * x + 0.7 * made
            with tf.GradientTape() as inner:
                inner.watch(mix)
                between = judge(mix)
            norm = tf.sqrt(tf.reduce_sum(inner.gradient(between, mix) ** 2, 1) + 1e-9)
            loss = tf.reduce_mean(judge(made)) - tf.reduce_mean(judge(x)) + 10 * tf.reduce_mean((norm - 1) ** 2)
        descend(tape, loss, [d, e], 0.05)
        with tf.GradientTape() as tape:
            other = -tf.reduce_mean(judge(noise @ g))
        descend(tape, other, [g], 0.05)
        return {"d": loss, "g": other}

    return [g, d, e], run


@step
def dynamic_scale() -> Any:
    """A loss scale that grows, and shrinks where a gradient is not finite."""
    w, scale, good = weight(12, 4), tf.Variable(8.0, dtype=D), tf.Variable(0)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(crossentropy(y, x @ w))
            scaled = loss * scale
        g = tape.gradient(scaled, w)
        finite = tf.reduce_all(tf.math.is_finite(g)) & (tf.norm(g) < 40)

        def update() -> Any:
            w.assign_sub(0.1 * g / scale)
            good.assign_add(1)
            scale.assign(tf.where(good % 2 == 0, scale * 2, scale))
            return tf.constant(True)

        def skip() -> Any:
            scale.assign(scale / 2)
            return tf.constant(False)

        done = tf.cond(finite, update, skip)
        return {"loss": loss, "done": tf.cast(done, D), "scale": scale.read_value()}

    return [w, scale, good], run


@step
def maml() -> Any:
    """A gradient through a gradient step, on two halves of the batch (`n // 2`)."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        half = tf.shape(x)[0] // 2
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                first = tf.reduce_mean(crossentropy(y[:half], x[:half] @ w))
            near = w - 0.4 * inner.gradient(first, w)
            loss = tf.reduce_mean(crossentropy(y[half:], x[half:] @ near))
        descend(tape, loss, [w])
        return {"loss": loss, "first": first}

    return [w], run


@step
def experts() -> Any:
    """Each row goes to the best of three; a loss that balances them."""
    gate, w, out = weight(12, 3), weight(3, 12, 6, seed=1), weight(6, 4, seed=2)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            p = tf.nn.softmax(x @ gate)
            value, place = tf.math.top_k(p, 2)
            hot = tf.reduce_sum(tf.one_hot(place, 3, dtype=D) * value[..., None], 1)
            h = tf.einsum("be,bed->bd", hot, tf.einsum("bi,eid->bed", x, w))
            balance = 3 * tf.reduce_sum(
                tf.reduce_mean(tf.one_hot(tf.argmax(p, 1), 3, dtype=D), 0) * tf.reduce_mean(p, 0)
            )
            loss = tf.reduce_mean(crossentropy(y, tf.nn.relu(h) @ out)) + 0.1 * balance
        descend(tape, loss, [gate, w, out])
        return {"loss": loss, "balance": balance}

    return [gate, w, out], run


@step
def experts_by_place() -> Any:
    """Rows sent to experts by position, with a capacity: a running count over rows."""
    gate, w = weight(12, 3), weight(3, 12, 4, seed=1)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            p = tf.nn.softmax(x @ gate)
            hot = tf.one_hot(tf.argmax(p, 1), 3, dtype=D)
            place = tf.cumsum(hot, 0, exclusive=True) * hot
            kept = hot * tf.cast(place < 4, D)
            loss = tf.reduce_mean(crossentropy(y, tf.einsum("be,bi,eio->bo", kept * p, x, w)))
        descend(tape, loss, [gate, w])
        return {"loss": loss, "dropped": 1 - tf.reduce_sum(kept) / tf.cast(tf.shape(x)[0], D)}

    return [gate, w], run


@step
def mapped() -> Any:
    """`tf.map_fn` and `vectorized_map` over rows, with what is sorted in each."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            h = tf.map_fn(lambda row: tf.cumsum(tf.sort(row)) / 10, x)
            h += tf.vectorized_map(lambda row: row * tf.reduce_sum(row), x)
            loss = tf.reduce_mean(crossentropy(y, h @ w))
        descend(tape, loss, [w])
        return {"loss": loss}

    return [w], run


@step
def conditional() -> Any:
    """Branches on the loss, and on a row."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            h = x @ w
            loss = tf.reduce_mean(crossentropy(y, h))
            loss = tf.cond(loss > 1.4, lambda: loss * 1.5, lambda: loss + tf.reduce_mean(h**2))
            h = tf.cond(x[0, 0] > 0.5, lambda: h * 2, lambda: h - tf.reduce_mean(h, 0))
            loss += tf.reduce_mean(tf.abs(h))
        descend(tape, loss, [w])
        return {"loss": loss}

    return [w], run


@step
def between_rows() -> Any:
    """Rows that look at others: the first, the last, the one before, sorted, ranked, counted, summed as they come."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        label = tf.reshape(y, [-1])
        with tf.GradientTape() as tape:
            h = x @ w
            loss = tf.reduce_mean((h - h[0]) ** 2) + tf.reduce_sum(h[-1]) * 0.1
            loss += tf.reduce_mean((h[1:] - h[:-1]) ** 2) + tf.reduce_mean(tf.cumsum(h, 0)) * 0.01
            each = crossentropy(y, h)
            k = tf.maximum(tf.shape(each)[0] // 2, 1)
            loss += tf.reduce_mean(tf.math.top_k(each, k).values) + tf.reduce_mean(tf.sort(each)[:1])
            loss += tf.reduce_mean(tf.gather(h, tf.argsort(each)) * h) * 0.1
        kinds, index, counts = tf.unique_with_counts(label)
        descend(tape, loss, [w])
        logs = {
            "kinds": tf.size(kinds),
            "most": tf.reduce_max(counts),
            "last": index[-1],
            "where": tf.size(tf.where(label > 1)),
        }
        return {"loss": loss, **{name: tf.cast(value, D) for name, value in logs.items()}}

    return [w], run


@step
def segments() -> Any:
    """Sums and means by class, centers of classes that move."""
    w, centers = weight(12, 4), tf.Variable(tf.zeros([4, 4], D))

    def run(x: Any, y: Any) -> Any:
        label = tf.reshape(y, [-1])
        with tf.GradientTape() as tape:
            h = x @ w
            means = tf.math.unsorted_segment_mean(h, label, 4)
            largest = tf.math.unsorted_segment_max(h, label, 4)
            loss = tf.reduce_mean((h - tf.gather(means, label)) ** 2) + tf.reduce_mean(
                (h - tf.gather(centers, label)) ** 2
            )
            loss += 0.01 * tf.reduce_sum(tf.where(largest > -1e3, largest, 0.0))
        centers.assign(tf.tensor_scatter_nd_add(centers, label[:, None], 0.1 * (h - tf.gather(centers, label))))
        descend(tape, loss, [w])
        return {"loss": loss}

    return [w, centers], run


@step
def memory_bank() -> Any:
    """A row's place in a table is written by its number; others are drawn from there."""
    w, bank = weight(12, 4), weight(50, 4, seed=3)

    def run(x: Any, y: Any) -> Any:
        number = tf.cast(x[:, 0] * 49, tf.int32)
        with tf.GradientTape() as tape:
            h = x @ w
            loss = tf.reduce_mean((h - tf.gather(bank, (number + 7) % 50)) ** 2)
        bank.scatter_nd_update(number[:, None], h)
        bank.scatter_add(tf.IndexedSlices(h * 0.1, (number + 1) % 50))
        descend(tape, loss, [w])
        return {"loss": loss, "bank": tf.reduce_sum(bank)}

    return [w, bank], run


@step
def embedding() -> Any:
    """Gradients that are indices and values, applied as such."""
    table, w = weight(10, 3), weight(3, 4)

    def run(x: Any, y: Any) -> Any:
        tokens = tf.cast(x * 9, tf.int32) % 10
        with tf.GradientTape() as tape:
            h = tf.reduce_mean(tf.nn.embedding_lookup(table, tokens), 1)
            loss = tf.reduce_mean(crossentropy(y, h @ w))
        g, h = tape.gradient(loss, [table, w])
        table.scatter_sub(tf.IndexedSlices(g.values * 0.1, g.indices))
        w.assign_sub(0.1 * h)
        return {"loss": loss, "size": tf.cast(tf.shape(g.indices)[0], D)}

    return [table, w], run


@step
def said() -> Any:
    """What is printed and asserted in the step."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(crossentropy(y, x @ w))
        tf.debugging.assert_all_finite(x, "x")
        tf.debugging.assert_less(y, 4)
        tf.debugging.assert_equal(tf.shape(x)[0], tf.shape(y)[0])
        with tf.control_dependencies([tf.debugging.assert_near(tf.reduce_sum(x), tf.reduce_sum(x))]):
            descend(tape, loss, [w])
        return {"loss": loss}

    return [w], run


@step
def triplets() -> Any:
    """The hardest of each row, by distances between all."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        label = tf.reshape(y, [-1])
        with tf.GradientTape() as tape:
            e = x @ w
            square = tf.reduce_sum(e * e, 1)
            d = square[:, None] - 2 * e @ tf.transpose(e) + square[None]
            same = tf.equal(label[:, None], label[None])
            far = tf.reduce_max(tf.where(same, d, 0.0), 1)
            near = tf.reduce_min(tf.where(same, tf.constant(1e9, D), d), 1)
            loss = tf.reduce_mean(tf.nn.softplus(far - tf.minimum(near, 50.0)))
            triple = d[:, :, None] - d[:, None, :] + 0.2
            valid = same[:, :, None] & ~same[:, None, :]
            loss += tf.reduce_sum(tf.where(valid, tf.nn.relu(triple), 0.0)) / (tf.reduce_sum(tf.cast(valid, D)) + 1e-9)
        descend(tape, loss, [w], 0.01)
        return {"loss": loss}

    return [w], run


@step
def until() -> Any:
    """A loop until a maximum over the batch is small; powers of a covariance."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            h, k = tf.while_loop(
                lambda h, k: (tf.reduce_max(tf.abs(h)) > 0.2) & (k < 7),
                lambda h, k: (h * 0.7 + 0.01 * tf.reduce_mean(h, 0), k + 1),
                (tf.tanh(x @ w), tf.constant(0)),
            )
            loss = tf.reduce_mean(crossentropy(y, h))
            v = tf.ones([4], D)
            for _ in tf.range(3):
                v = tf.linalg.matvec(h, tf.linalg.matvec(h, v), transpose_a=True)
                v = v / (tf.norm(v) + 1e-6)
            loss += 0.1 * tf.reduce_sum(v * v * tf.range(4.0, dtype=D))
        descend(tape, loss, [w])
        return {"loss": loss, "k": tf.cast(k, D)}

    return [w], run


@step
def over_rows() -> Any:
    """A loop over the rows one by one, `scan` over them, and a loop whose sum grows by rows."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            h = x @ w
            total = tf.zeros([4], D)
            for i in tf.range(tf.shape(h)[0]):
                total = 0.9 * total + h[i]
            last = tf.scan(lambda a, row: 0.5 * a + row, h)
            loss = tf.reduce_mean(total**2) + tf.reduce_mean(last**2)
        descend(tape, loss, [w], 0.01)
        return {"loss": loss}

    return [w], run


@step
def whitening() -> Any:
    """Decompositions of a covariance over the batch (running statistics, ZCA)."""
    w, moving = weight(12, 4), tf.Variable(tf.eye(4, dtype=D))

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            h = x @ w
            h -= tf.reduce_mean(h, 0)
            c = tf.matmul(h, h, transpose_a=True) / tf.cast(tf.shape(h)[0], D) + 0.1 * tf.eye(4, dtype=D)
            z = tf.transpose(tf.linalg.triangular_solve(tf.linalg.cholesky(c), tf.transpose(h)))
            loss = tf.reduce_mean(crossentropy(y, z))
        moving.assign(0.9 * moving + 0.1 * c)
        descend(tape, loss, [w])
        return {"loss": loss, "trace": tf.linalg.trace(moving)}

    return [w, moving], run


@step
def histograms() -> Any:
    """Confusion matrices, histograms, quantiles, bins."""
    w, matrix = weight(12, 4), tf.Variable(tf.zeros([4, 4], tf.int32))

    def run(x: Any, y: Any) -> Any:
        label = tf.reshape(y, [-1])
        with tf.GradientTape() as tape:
            logits = x @ w
            loss = tf.reduce_mean(crossentropy(y, logits))
        found = tf.argmax(logits, 1, tf.int32)
        matrix.assign_add(tf.math.confusion_matrix(label, found, 4))
        bins = tf.histogram_fixed_width(x, tf.constant([0.0, 1.0], D), 5)
        counts = tf.math.bincount(label, minlength=4, maxlength=4)
        top = tf.math.in_top_k(label, tf.cast(logits, tf.float32), 2)
        descend(tape, loss, [w])
        return {
            "loss": loss, "right": tf.cast(tf.linalg.trace(matrix), D), "bin": tf.cast(bins[2], D),
            "count": tf.cast(counts[1], D), "in_top": tf.reduce_mean(tf.cast(top, D)),
        }  # fmt: skip

    return [w, matrix], run


@step
def mixup() -> Any:
    """Rows mixed with the batch reversed and rolled: another row of another rank."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        hot = tf.one_hot(tf.reshape(y, [-1]), 4, dtype=D)
        mixed, label = 0.7 * x + 0.3 * tf.reverse(x, [0]), 0.7 * hot + 0.3 * tf.reverse(hot, [0])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(label, mixed @ w))
            loss += tf.reduce_mean((x @ w - tf.roll(x, 1, 0) @ w) ** 2)
            a, b = tf.split(tf.concat([x, mixed], 0) @ w, 2)
            loss += tf.reduce_mean((a - b) ** 2)
        descend(tape, loss, [w])
        return {"loss": loss}

    return [w], run


@step
def ragged() -> Any:
    """Ragged rows made of a mask, and their means."""
    w = weight(1, 4)

    def run(x: Any, y: Any) -> Any:
        lengths = tf.cast(x[:, 0] * 11, tf.int32) + 1
        rows = tf.RaggedTensor.from_tensor(x, lengths=lengths)
        with tf.GradientTape() as tape:
            mean = tf.reduce_mean(rows, 1)
            loss = tf.reduce_mean(crossentropy(y, mean[:, None] @ w))
        descend(tape, loss, [w])
        return {"loss": loss, "values": tf.cast(tf.size(rows.flat_values), D)}

    return [w], run


@step
def sparse() -> Any:
    """A sparse matrix of the batch."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        given = tf.sparse.from_dense(tf.where(x > 0.5, x, 0.0))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(crossentropy(y, tf.sparse.sparse_dense_matmul(given, w)))
        descend(tape, loss, [w])
        return {"loss": loss}

    return [w], run


@step
def turning() -> Any:
    """A loop in which rows become a sum over rows and turn back, and one in which two values change places."""
    w = weight(12, 4)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            h = tf.tanh(x @ w)
            s = tf.matmul(h, h, transpose_b=True) / 10
            v = tf.reduce_sum(h, 1)
            u = tf.ones_like(v)
            for _ in tf.range(3):
                u, v = tf.linalg.matvec(s, v, transpose_a=True), u + tf.sin(v)
            loss = tf.reduce_mean(u * v)
        descend(tape, loss, [w], 0.01)
        return {"loss": loss}

    return [w], run
