"""Collectives find their own on the other ranks: backward passes, and loops, branches and functions of sessions."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.features.horovod.cases.horovod import same, wrong
from tests.features.horovod.cases.horovod_script import hvd, script

FACTORS = (1.0, 10.0, 100.0, 1000.0)
RUNS = 5  # of which some go wrong where names are not unique


def collectives():
    """Every op that has a gradient."""
    size = hvd.size()
    splits = [place + 1 for place in range(size)]
    return {
        "allreduce": lambda x: [hvd.allreduce(x, op=hvd.Sum)],
        "grouped_allreduce": lambda x: hvd.grouped_allreduce([x, 2 * x]),
        "allgather": lambda x: [hvd.allgather(x)],
        "grouped_allgather": lambda x: hvd.grouped_allgather([x, x[1:]]),
        "broadcast": lambda x: [hvd.broadcast(x, size - 1)],
        "alltoall": lambda x: [hvd.alltoall(x, splits)[0]],
        "reducescatter": lambda x: [hvd.reducescatter(x, op=hvd.Sum)],
        "grouped_reducescatter": lambda x: hvd.grouped_reducescatter([x, 2 * x]),
    }


def value():
    """What this rank gives."""
    size = hvd.size()
    return np.arange(size * (size + 1), dtype=np.float64).reshape(-1, 2) + hvd.rank()


def total(outs, factor):
    """A loss of which the second derivative is not zero."""
    return factor * tf.add_n([tf.reduce_sum(out * out) for out in outs])


def by_tapes(op, x, factors):
    """First and second derivatives by persistent tapes, one backward pass for each factor."""
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape(persistent=True) as inner:
            inner.watch(x)
            outs = op(x)
            losses = [total(outs, factor) for factor in factors]
        first = [inner.gradient(loss, x) for loss in losses]
        norms = [tf.reduce_sum(slope * slope) for slope in first]
    return first + [outer.gradient(norm, x) for norm in norms]


def by_session(op):
    """The same by `tf.gradients`, all in one run, which picks an order of its own; of several runs."""
    results = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.constant(value())
        outs = op(x)
        first = [tf.gradients(total(outs, factor), x)[0] for factor in FACTORS]
        second = [tf.gradients(tf.reduce_sum(slope * slope), x)[0] for slope in first]
        for _ in range(RUNS):
            results.append(session.run(first + second))
    return results


@script
def backward_passes(how):
    """Several of one collective, each with the gradient that it has alone, eagerly."""
    results = {}
    for name, op in collectives().items():
        x = tf.constant(value())
        alone = [by_tapes(op, x, [factor]) for factor in FACTORS]
        right = [one[0] for one in alone] + [one[1] for one in alone]
        if how == "session":
            runs = by_session(op)
        elif how == "function":
            runs = [tf.function(lambda x, op=op: by_tapes(op, x, FACTORS))(x)]
        else:
            runs = [by_tapes(op, x, FACTORS)]
        for number, run in enumerate(runs):
            checks = [same(got, expected, tf.float64) for got, expected in zip(run, right, strict=True)]
            results[f"{name}, run {number}"] = next((check for check in checks if check is not True), True)
    return wrong(results)


def in_session(make, v2=True, runs=RUNS):
    """What a graph gives, in several runs; an error of TensorFlow's in its place."""
    results = []
    control = tf.compat.v1.enable_control_flow_v2 if v2 else tf.compat.v1.disable_control_flow_v2
    try:
        control()
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            fetches = make()
            for _ in range(runs):
                try:
                    results.append(session.run(fetches))
                except tf.errors.OpError as error:
                    results.append(error)
        return results
    finally:
        tf.compat.v1.enable_control_flow_v2()


@script
def control_flow(v2):
    """Loops, whose iterations run side by side, their gradients, loops in loops, and branches, of both kinds."""
    size, results = hvd.size(), {}
    steps = 12

    def loop():
        def body(i, rows):
            return i + 1, rows.write(i, hvd.allreduce(tf.cast(i, tf.float32) * [1.0, 2.0], op=hvd.Sum))

        empty = tf.TensorArray(tf.float32, steps)
        return tf.while_loop(lambda i, rows: i < steps, body, (0, empty), parallel_iterations=10)[1].stack()

    def slopes():
        x = tf.constant([1.0, 2.0, 3.0])

        def body(i, s):
            return i + 1, s + tf.cast(i, tf.float32) * hvd.allreduce(x * tf.cast(i, tf.float32), op=hvd.Sum)

        end = tf.while_loop(lambda i, s: i < steps, body, (0, tf.zeros([3])), parallel_iterations=10)[1]
        return tf.gradients(end, x)[0]

    def loops():
        def inner(i, j, s):
            return i, j + 1, s + hvd.allreduce(tf.cast(10**j * i, tf.float32), op=hvd.Sum)

        def outer(i, rows):
            s = tf.while_loop(lambda i, j, s: j < 3, inner, (i, 0, 0.0), parallel_iterations=10)[2]
            return i + 1, rows.write(i, s)

        empty = tf.TensorArray(tf.float32, steps)
        return tf.while_loop(lambda i, rows: i < steps, outer, (0, empty), parallel_iterations=10)[1].stack()

    def branches():
        yes = tf.compat.v1.placeholder_with_default(True, [])
        return [
            tf.cond(yes, lambda k=k: hvd.allreduce(tf.constant(float(k)), op=hvd.Sum), lambda: 0.0)
            for k in range(steps)
        ]

    numbers = np.arange(steps, dtype=np.float64)
    for name, make, right in (
        ("loop", loop, size * numbers[:, None] * [1.0, 2.0]),
        ("gradient of a loop", slopes, np.full(3, size * (numbers**2).sum())),
        ("loops in a loop", loops, size * numbers * 111),
        ("branches", branches, size * numbers),
    ):
        for number, got in enumerate(in_session(make, v2)):
            results[f"{name}, run {number}"] = (
                got if isinstance(got, Exception) else same(np.array(got), right, tf.float32)
            )
    return {name: str(result) for name, result in wrong(results).items()}


@script
def names_and_scopes():
    """One name in several places and scopes, made in another order on each rank; one tensor several times; barriers."""
    rank, size, results = hvd.rank(), hvd.size(), {}

    def make():
        sums = {}
        for number in np.roll(range(6), rank):
            with tf.name_scope(f"scope{number}"):
                sums[int(number)] = hvd.allreduce(tf.constant(float(number)), op=hvd.Sum, name="x")
        x = tf.constant([1.0, float(rank)])
        more = [hvd.allreduce(x, op=op) for op in (hvd.Sum, hvd.Max, hvd.Min)]
        rows = [hvd.allreduce(tf.constant(float(k)), op=hvd.Sum, name="twice") for k in range(3)]
        return [sums[number] for number in range(6)], more, rows, [hvd.barrier(), hvd.barrier()]

    for number, got in enumerate(in_session(make)):
        results[f"scopes {number}"] = same(np.array(got[0]), size * np.arange(6.0), tf.float32)
        sums = [[size, size * (size - 1) / 2], [1, size - 1], [1, 0]]
        results[f"one tensor {number}"] = same(np.array(got[1]), sums, tf.float32)
        results[f"one name {number}"] = same(np.array(got[2]), size * np.arange(3.0), tf.float32)
    return wrong(results)


@script
def functions():
    """A function that a session's graph calls in several places: in one run only in an order; so its gradient."""
    size, steps, results = hvd.size(), 6, {}

    def traced():
        return tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))

    def several(ordered=False):
        add_up, sums = traced(), []
        for k in range(steps):
            with tf.control_dependencies(sums if ordered else []):
                sums.append(add_up(tf.constant(float(k))))
        return sums

    def gradients():
        x = tf.constant(1.0)
        y = traced()(x)
        return [tf.gradients(y * float(k), x)[0] for k in range(steps)]

    def loop():
        add_up = traced()
        add_up(tf.constant(0.0))  # traced here, and used in the loop

        def body(i, rows):
            return i + 1, rows.write(i, add_up(tf.cast(i, tf.float32)))

        empty = tf.TensorArray(tf.float32, steps)
        return tf.while_loop(lambda i, rows: i < steps, body, (0, empty), parallel_iterations=10)[1].stack()

    right = size * np.arange(float(steps))
    for name, make in {"no order": several, "gradients": gradients}.items():
        for number, got in enumerate(in_session(make, runs=2)):
            results[f"{name} {number}"] = True if "in no order" in str(got) else str(got)
    for name, make in {"order": lambda: several(True), "one": lambda: several()[2], "loop": loop}.items():
        for number, got in enumerate(in_session(make)):
            wanted = right[2] if name == "one" else right
            results[f"{name} {number}"] = (
                str(got) if isinstance(got, Exception) else same(np.array(got), wanted, tf.float32)
            )
    return wrong(results)


@script
def twice_at_a_time(tmp):
    """Two threads of rank 0 are in collectives of one name: an error on every rank, and the next one is right."""
    coordinator, sign = hvd.global_process_set.coordinator, Path(tmp) / "both"
    told = []

    def work():
        try:
            told.append(float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="x")))
        except tf.errors.OpError as error:
            told.append(type(error).__name__ + " " + str(error))

    if hvd.rank() == 0:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        while len(coordinator._pending) < 2:  # the others have not come yet, so that both stay
            time.sleep(1e-3)
        sign.touch()
        for thread in threads:
            thread.join()
    else:
        while not sign.exists():
            time.sleep(1e-3)
        work()
        work()
    return sorted(map(str, told)), float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="x"))


@script
def session_before_init():
    """A session that is made before `init` runs its collectives side by side, too."""
    hvd.shutdown()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        hvd.init()
        order = list(np.roll(range(24), 7 * hvd.rank()))
        sums = {n: hvd.allreduce(tf.fill([3], float(n)), op=hvd.Sum, name=f"n{n}") for n in order}
        got = session.run(sums)
    return all(np.array_equal(got[n], np.full(3, n * hvd.size())) for n in order)
