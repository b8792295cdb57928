"""The ways to lay exchanges between the computations of a step."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import time

import numpy as np

from matex_tf import settings
from matex_tf.core import world
from matex_tf.exchange import bucket, overlap, process_group
from matex_tf.exchange.bucket import BucketPlan


@contextlib.contextmanager
def scheduled(how, bucket_bytes):
    """Run with a schedule, and with buckets small enough that small models have many.

    The first step is not checked: a rank that computes it alone makes no sums.
    """
    before = settings.use(dataclasses.replace(settings.current(), schedule=how, bucket_mb=1, check="off"))
    megabyte, bucket.MEGABYTE = bucket.MEGABYTE, bucket_bytes
    try:
        yield
    finally:
        bucket.MEGABYTE = megabyte
        settings.use(before)


def same(inner, how, bucket_bytes=256, **kwargs):
    """Another case, with a schedule; its answer, and the buckets of its largest exchange."""
    counts = []
    of = BucketPlan.of.__func__

    def counted(cls, *args, **options):
        made = of(cls, *args, **options)
        counts.append(len(made.buckets))
        return made

    BucketPlan.of = classmethod(counted)
    try:
        with scheduled(how, bucket_bytes):
            return inner(**kwargs), max(counts, default=0) if world.size() > 1 else None
    finally:
        BucketPlan.of = classmethod(of)


def any_order(threads, hosts="", steps=500):
    """Buckets of two plans, posted and collected in another order on each rank, by several threads; a round trip
    between steps now and then. How many sums were wrong."""
    everyone = world.current()
    ranks = everyone.subset(list(range(everyone.size)), host=hosts[everyone.rank] if hosts else "")
    draw = random.Random(1000 + ranks.rank)
    plans = []
    for number in range(2):
        shapes = [(40 + 7 * i + number,) for i in range(7)] + [(20_000,)]
        dtypes = [np.dtype("float32"), np.dtype("int32")] * 4
        plans.append(BucketPlan(f"exchange {number}", [f"tensor {i}" for i in range(8)], shapes, dtypes, 200))
    threads = overlap.threads_of(process_group.of(ranks, plans[0]), threads)
    wrong = 0
    shift = sum(range(ranks.size))
    for step in range(steps):
        for p in plans:
            order = list(range(len(p.buckets)))
            draw.shuffle(order)
            # The first is posted here: plans begin in the same order on every rank.
            post(threads, p, order[0], step, ranks.rank)
            helper = threading.Thread(target=post_all, args=(threads, p, order[1:], step, ranks.rank))
            helper.start()
            if draw.random() < 0.02:
                time.sleep(draw.random() * 2e-3)
            helper.join()
        for p in draw.sample(plans, 2):
            order = list(range(len(p.buckets)))
            draw.shuffle(order)
            for number in order:
                for total in threads.collect(p, number):
                    wrong += not (total == ranks.size * (step + number) + shift).all()
        if step % 50 == 0:
            ranks.barrier("look around")
    ranks.free()
    return wrong


def post_all(threads, p, order, step, rank):
    """Post several buckets."""
    for number in order:
        post(threads, p, number, step, rank)


def post(threads, p, number, step, rank):
    """Post a bucket full of a number that tells rank, step and bucket."""
    bucket = p.buckets[number]
    threads.post(p, number, [np.full(p.shapes[m], step + number + rank, bucket.dtype) for m in bucket.members])


def differ_apart(how, hosts=""):
    """One rank has another tensor; what each is told, and that the next exchange is right."""
    from matex_tf.errors import RanksDisagree

    everyone = world.current()
    ranks = everyone.subset(list(range(everyone.size)), host=hosts[everyone.rank] if hosts else "")
    texts = []
    for names in (["a", "b", "c"], ["a", "other" if ranks.rank == 1 else "b", "c"], ["a", "b", "c"]):
        p = BucketPlan("exchange", names, [(100,)] * 3, [np.dtype("float32")] * 3, 400)
        threads = overlap.threads_of(process_group.of(ranks, p), 1 if how == "funneled" else 2)
        for number in range(3):
            threads.post(p, number, [np.ones(100, np.float32)])
        try:
            sums = [threads.collect(p, number)[0] for number in range(3)]
            texts.append(all((total == ranks.size).all() for total in sums))
        except RanksDisagree as error:
            texts.append(str(error))
    ranks.free()
    return texts


def kept_gradients(how):
    """A custom step that runs eagerly and keeps its gradients in a list; what they are at the end."""
    import keras
    import tensorflow as tf

    from matex_tf.exchange import tf_op

    held, copies = [], []
    kernel = tf.Variable(tf.zeros([300, 70]))
    taken_over = tf.Variable(tf.zeros([300, 70]))
    whole = tf.function(lambda x, y: tf_op.sum_over_ranks([x, y], "exchange gradients", ["kernel", "bias"]))

    @tf.function
    def assigning(x):
        (total, _) = tf_op.sum_over_ranks([x, x], "exchange gradients", ["kernel", "other"])
        taken_over.assign(total)  # the variable may take the tensor's memory over
        taken_over.assign_add(tf.ones_like(total))

    with scheduled(how, 64_000):
        for step in range(8):
            gradient = tf.fill([300, 70], float(step + world.rank()))
            for sums in (whole(gradient, gradient), tf_op.sum_over_ranks([gradient, gradient], "exchange", ["k", "b"])):
                held.append(sums[0])
                copies.append(sums[0].numpy().copy())
                kernel.assign_sub(0.1 * sums[0])
            if step == 3:
                assigning(gradient)
    del keras
    shift = sum(range(world.size()))
    right = all((now.numpy() == then).all() for now, then in zip(held, copies, strict=True))
    return right, float(copies[-1].max()) == 7 * world.size() + shift, float(taken_over.numpy().max()) - shift


def weighted_products(how, elements, weights):
    """Products of tensors and a rank's weight, in whose place the exchange takes the tensors: whether the sums have the
    bits of the products' sums, and whether the graph computes any of them."""
    import tensorflow as tf

    from matex_tf.exchange import op_inputs, tf_op

    ranks, random = world.current(), np.random.RandomState(7 + world.rank())
    own = [random.normal(size=size).astype(("float32", "float64")[n == 1]) for n, size in enumerate(elements)]
    if not weights[ranks.rank]:
        own[0][:] = np.nan  # of a rank that has no rows: it counts nothing
    labels = [f"{how} {size}" for size in elements]

    @tf.function(autograph=False)
    def sums(given, weight, noted):
        products = [tf.math.multiply_no_nan(one, tf.cast(weight, one.dtype)) for one in given]
        if noted:
            for product, one in zip(products[:-1], given, strict=False):  # the last one counts as it is given
                op_inputs.note_product(product, one, weight)
        return tf_op.sum_over_ranks(products, "exchange gradients", labels)

    given, weight = [tf.constant(one) for one in own], tf.constant(weights[ranks.rank], tf.float32)
    with scheduled(how, 4096):
        noted, plain = sums(given, weight, True), sums(given, weight, False)
    graph = sums.get_concrete_function(given, weight, True).graph
    given_to_ops = [tensor.op for op in graph.get_operations() if "PyFunc" in op.type for tensor in op.inputs]
    return (
        all(one.numpy().tobytes() == other.numpy().tobytes() for one, other in zip(noted, plain, strict=True)),
        bool(np.isfinite(noted[0].numpy()).all()),
        len({op.name for op in given_to_ops if op.type == "MulNoNan"}),
    )


def overlapping(how, steps=4):
    """A layer whose backward pass ends when the gradients of the layers behind it have been added up: where no sum is
    made before all gradients are there, it waits in vain. In how many steps it was so."""
    import keras
    import tensorflow as tf

    from matex_tf.exchange.process_group import ProcessGroup

    summed, in_vain = threading.Event(), 0

    def wait(values):
        nonlocal in_vain
        in_vain += not summed.wait(20)
        summed.clear()
        return values

    @tf.custom_gradient
    def gate(tensor):
        def backward(upstream):
            after = tf.numpy_function(wait, [upstream], upstream.dtype, stateful=False)
            after.set_shape(upstream.shape)
            return after

        return tf.identity(tensor), backward

    class Gate(keras.layers.Layer):
        def call(self, inputs):
            return gate(inputs)

    def seen(sum_of):
        def summing(self, *args):
            sums = sum_of(self, *args)
            p, number, _ = args[-3:]
            if number == 0 and len(p.buckets) > 1:
                summed.set()
            return sums

        return summing

    before = ProcessGroup.sum, ProcessGroup.sum_apart
    ProcessGroup.sum, ProcessGroup.sum_apart = seen(ProcessGroup.sum), seen(ProcessGroup.sum_apart)
    try:
        with scheduled(how, 4000):
            layers = keras.layers
            model = keras.Sequential([keras.Input((8,)), layers.Dense(8), Gate(), layers.Dense(300), layers.Dense(1)])
            model.compile("sgd", "mse", jit_compile=False)
            rows = steps * world.size()
            model.fit(np.ones((rows, 8), np.float32), np.ones(rows, np.float32), batch_size=world.size(), verbose=0)
    finally:
        ProcessGroup.sum, ProcessGroup.sum_apart = before
    return in_vain
