"""Process sets of the Horovod names: every collective among some of the ranks, at the same time as among the others."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import tensorflow as tf

from matex_tf.features.horovod.names.core import basics
from matex_tf.features.horovod.names.core import coordinator as coordinator_module
from tests.features.horovod.cases.horovod import given, same, wrong
from tests.features.horovod.cases.horovod_script import hvd, script

DTYPES = (tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64)


def even_and_odd():
    """Two sets of every other rank, made by `init`, and the one that this rank is in."""
    sets = [hvd.ProcessSet(range(0, hvd.size(), 2)), hvd.ProcessSet(reversed(range(1, hvd.size(), 2)))]
    hvd.init(process_sets=sets)
    return *sets, sets[hvd.rank() % 2]


def starts(rows, size):
    """Where the rows of each rank begin that `reducescatter` gives it."""
    return np.cumsum([0] + [rows // size + (place < rows % size) for place in range(size)])


def calls(mine):
    """By name: the rows that the rank at a place gives, the call, what this rank gets, and the gradient of its rows.

    What is expected is made from a list over the places of the set: of arrays, or of the upstream gradients, which are
    one number for each place.
    """
    size, me = len(mine.ranks), mine.rank()

    def sums(parts):
        return sum(part.astype(np.int64 if part.dtype.kind in "iu" else np.float64) for part in parts)

    def mean(parts):
        return sums(parts) // size if parts[0].dtype.kind in "iu" else sums(parts) / size

    def own_rows(parts, reduce):
        total, begin = reduce(parts), starts(2 * size + 1, size)
        return total[begin[me] : begin[me + 1]]

    def owners(grads):
        return np.repeat(grads, np.diff(starts(2 * size + 1, size)))

    last, among = mine.ranks[-1], {"process_set": mine}
    return {
        "sum": (lambda place: 5, lambda t: [hvd.allreduce(t, op=hvd.Sum, **among)], lambda p: [sums(p)], sum),
        "average": (lambda place: 5, lambda t: [hvd.allreduce(t, **among)], lambda p: [mean(p)], np.mean),
        "grouped": (
            lambda place: 5,
            lambda t: hvd.grouped_allreduce([t, t], op=hvd.Sum, **among),
            lambda p: [sums(p)] * 2,
            lambda grads: 2 * sum(grads),
        ),
        "allgather": (
            lambda place: place + 1,
            lambda t: [hvd.allgather(t, **among)],
            lambda p: [np.concatenate(p)],
            np.mean,
        ),
        "broadcast": (
            lambda place: 5,
            lambda t: [hvd.broadcast(t, last, **among)],
            lambda p: [p[-1]],
            lambda grads: np.mean(grads) if hvd.rank() == last else 0.0,
        ),
        "alltoall": (
            lambda place: (place + 1) * size,
            lambda t: [hvd.alltoall(t, [me + 1] * size, **among)[0]],
            lambda p: [np.concatenate([part[me * (n + 1) : (me + 1) * (n + 1)] for n, part in enumerate(p)])],
            lambda grads: np.repeat(grads, me + 1),
        ),
        "reducescatter": (
            lambda place: 2 * size + 1,
            lambda t: [hvd.reducescatter(t, op=hvd.Sum, **among)],
            lambda p: [own_rows(p, sums)],
            lambda grads: size * owners(grads),
        ),
        "reducescatter average": (
            lambda place: 2 * size + 1,
            lambda t: [hvd.reducescatter(t, **among)],
            lambda p: [own_rows(p, mean)],
            owners,
        ),
    }


def shape_of(rows, dim):
    """Of `dim` dimensions."""
    return (rows, *(3,) * (dim - 1))


@script
def ops(session):
    """Every op, dtype and dimension; in a session all dtypes and dimensions of an op at once, in no order."""
    *_, mine = even_and_odd()
    results = {}
    combinations = list(itertools.product(DTYPES, (1, 2, 3)))
    for name, (rows, call, expected, _) in calls(mine).items():
        parts = {
            (dtype, dim): [given(r, dtype, shape_of(rows(place), dim)) for place, r in enumerate(mine.ranks)]
            for dtype, dim in combinations
        }
        with tf.Graph().as_default() if session else tf.init_scope():
            asked = [call(tf.constant(parts[key][mine.rank()], key[0])) for key in combinations]
            if session:
                with tf.compat.v1.Session() as running:
                    asked = running.run(asked)
        for (dtype, dim), got in zip(combinations, asked, strict=True):
            right = expected(parts[dtype, dim])
            checks = [same(one, other, dtype) for one, other in zip(got, right, strict=True)]
            results[f"{name} {dtype.name} {dim}"] = next((check for check in checks if check is not True), True)
    return wrong(results)


@script
def gradients(session):
    """Of every op, where what comes out has the gradient rank + 1."""
    *_, mine = even_and_odd()
    results, upstream = {}, [rank + 1.0 for rank in mine.ranks]
    for (name, (rows, call, _, expected)), dtype, dim in itertools.product(
        calls(mine).items(), (tf.float32, tf.float64), (1, 2, 3)
    ):
        value = given(hvd.rank(), dtype, shape_of(rows(mine.rank()), dim))
        if session:
            with tf.Graph().as_default(), tf.compat.v1.Session() as running:
                tensor = tf.constant(value)
                outs = call(tensor)
                ys = [tf.ones_like(out) * upstream[mine.rank()] for out in outs]
                got = running.run(tf.gradients(outs, tensor, ys)[0])
        else:
            tensor = tf.constant(value)
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                outs = call(tensor)
            got = tape.gradient(outs, tensor, [tf.ones_like(out) * upstream[mine.rank()] for out in outs])
        right = np.asarray(expected(upstream), np.float64).reshape(-1, *(1,) * (dim - 1))
        results[f"{name} {dtype.name} {dim}"] = same(got, np.broadcast_to(right, value.shape), dtype)
    return wrong(results)


@script
def errors(session):
    """A set of others, one that is not known, and members that differ: the other set and the next op are right."""
    even, odd, mine = even_and_odd()
    other = odd if mine is even else even
    theirs = other.ranks[0]
    fake = hvd.ProcessSet([0])
    fake.process_set_id = 10
    last = hvd.rank() == even.ranks[-1]  # the odd one out among the even ranks

    def run(make):
        if not session:
            return make()
        with tf.Graph().as_default(), tf.compat.v1.Session() as running:
            return running.run(make())

    def told(make):
        try:
            run(make)
        except (tf.errors.OpError, ValueError) as error:
            return type(error).__name__, getattr(error, "message", str(error))
        return "nothing", ""

    results = {}
    before, coordinator_module.PATIENCE = coordinator_module.PATIENCE, 0.3
    try:
        for name, kind, words, make in (
            ("not a member", "InvalidArgumentError", "is not in", lambda: hvd.allreduce([1.0], process_set=other)),
            ("gather", "InvalidArgumentError", "is not in", lambda: hvd.allgather([1.0], process_set=other)),
            ("unknown", "ValueError", "is not known", lambda: hvd.allreduce([1.0], process_set=fake)),
            ("root", "InvalidArgumentError", "no rank", lambda: hvd.broadcast([1.0], theirs, process_set=mine)),
        ):  # fmt: skip
            got = told(make)
            results[name] = True if got[0] == kind and words in got[1] else got
        for name, make in {
            "shape": lambda: hvd.allreduce(tf.ones([3 if last else 4]), process_set=mine),
            "dtype": lambda: hvd.allgather(tf.ones([3], tf.int32 if last else tf.float32), process_set=mine),
            "roots": lambda: hvd.broadcast(tf.ones([3]), mine.ranks[-1 if last else 0], process_set=mine),
        }.items():
            got = told(make)
            if mine is odd:
                results[name] = got[0] == "nothing"
            else:
                results[name] = True if got[0] == "FailedPreconditionError" and "differ" in got[1][:40] else got
            total = run(lambda: hvd.allreduce([1.0], op=hvd.Sum, process_set=mine))
            results[f"{name}, next"] = same(total, [len(mine.ranks)], tf.float32)
    finally:
        coordinator_module.PATIENCE = before
    results["of all"] = same(hvd.allreduce([1.0], op=hvd.Sum), [hvd.size()], tf.float32)
    return wrong(results)


@script
def numbers():
    """Sets that are added and removed: their numbers, which are used again, their words, and sets that are there."""
    size, results = hvd.size(), {}
    first, rest = hvd.add_process_set([0]), hvd.add_process_set(range(1, size))
    numbers = hvd.get_process_set_ids_and_ranks
    results["both"] = numbers() == {0: list(range(size)), 1: [0], 2: list(range(1, size))}
    results["text"] = str(rest) == f"ProcessSet(process_set_id=2, ranks={rest.ranks}, mpi_comm=None)"
    results["on all ranks"] = hvd.allgather_object((first.process_set_id, rest.process_set_id)) == [(1, 2)] * size
    results["removed"] = hvd.remove_process_set(first) and first.process_set_id is None and first.size() is None
    results["once"] = not hvd.remove_process_set(first)
    results["the other stays"] = numbers() == {0: list(range(size)), 2: list(range(1, size))}
    hvd.add_process_set(first)
    results["added again"] = first.process_set_id == 1
    hvd.remove_process_set(first)
    ends = hvd.add_process_set([size - 1, 0])
    results["number used again"] = (ends.process_set_id, ends.ranks) == (1, [0, size - 1])
    for name, ranks in {"in another order": range(size - 1, 0, -1), "of all": range(size), "empty": []}.items():
        try:
            hvd.add_process_set(list(ranks))
            results[name] = "went through"
        except ValueError:
            results[name] = True
    if ends.included():
        results["of the ends"] = same(hvd.allgather([hvd.rank()], process_set=ends), [0, size - 1], tf.int32)
    results["included"] = int(hvd.process_set_included_op(ends.process_set_id)) == int(ends.included())
    results["no such set"] = int(hvd.process_set_included_op(7)) == -3
    results["all removed"] = hvd.remove_process_set(rest) and hvd.remove_process_set(ends)
    results["one left"] = numbers() == {0: list(range(size))}
    return wrong(results)


@script
def training():
    """Optimizers, tapes and objects of a set; on the other ranks gradients stay as they are."""
    even, _, mine = even_and_odd()
    rank, results = hvd.rank(), {}
    mean = float(np.mean(even.ranks)) if even.included() else float(rank)
    variable = tf.Variable([0.0])
    hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=even).apply_gradients(
        [(tf.constant([float(rank)]), variable)]
    )
    results["of Keras"] = same(variable, [-mean], tf.float32)
    x = tf.constant(float(rank))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    slope = hvd.DistributedGradientTape(tape, process_set=even).gradient(y, [x])[0]
    results["tape"] = same(slope, 2 * mean, tf.float32)
    for resource in (True, False):
        with tf.Graph().as_default(), tf.compat.v1.Session() as running:
            w = tf.compat.v1.get_variable("w", initializer=[0.0], use_resource=resource)
            optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), process_set=even)
            train = optimizer.minimize(tf.reduce_sum(w) * float(rank))
            running.run(tf.compat.v1.global_variables_initializer())
            running.run(train)
            results[f"session, resource {resource}"] = same(running.run(w), [-mean], tf.float32)
    said = {"rank": rank}
    results["object"] = hvd.broadcast_object_fn(root_rank=mine.ranks[0], process_set=mine)(said) == {
        "rank": mine.ranks[0]
    }
    results["objects"] = hvd.allgather_object(said, process_set=mine) == [{"rank": r} for r in mine.ranks]
    weights = [tf.Variable([rank + 0.5])]
    hvd.broadcast_variables(weights, mine.ranks[-1], process_set=mine)
    results["variables"] = same(weights[0], [mine.ranks[-1] + 0.5], tf.float32)
    return wrong(results)


@script
def failures():
    """A list of sets with one that cannot be adds none, on every rank, and a rank's bad list is told to all of them."""
    rank, size, results = hvd.rank(), hvd.size(), {}

    def told(call):
        try:
            call()
        except ValueError as error:
            return str(error)
        return "nothing"

    numbers, everyone = hvd.get_process_set_ids_and_ranks, {0: list(range(size))}
    first, rest = hvd.ProcessSet([0]), hvd.ProcessSet(range(1, size))
    text = told(lambda: hvd.init(process_sets=[first, rest, reversed(range(1, size))]))
    results["twice"] = "duplicate process set" in text
    results["none added"] = numbers() == everyone and first.process_set_id is None
    results["no such rank"] = "cannot be" in told(lambda: hvd.init(process_sets=[[0], [size]]))
    text = told(lambda: hvd.add_process_set([0, 1] if rank else [0, size]))
    results["of one rank"] = "refused" in text and f"[0, {size}]" in text
    results["still none"] = numbers() == everyone
    hvd.init(process_sets=[first, rest])
    results["then"] = numbers() == {**everyone, 1: [0], 2: rest.ranks}
    mine = rest if rank else first
    results["sum"] = same(hvd.allreduce([1.0], op=hvd.Sum, process_set=mine), [len(mine.ranks)], tf.float32)
    for _ in range(20):
        hvd.shutdown()
        hvd.init(process_sets=[first, rest])
    results["sum of all"] = same(hvd.allreduce([1.0], op=hvd.Sum), [size], tf.float32)
    results["sum after all"] = same(hvd.allreduce([1.0], op=hvd.Sum, process_set=mine), [len(mine.ranks)], tf.float32)
    coordinators = [basics.coordinator(), mine.coordinator]
    hvd.shutdown()
    hvd.init(process_sets=[first, rest])
    results["communicators given back"] = (
        coordinators[1].ranks._comm is None and basics.coordinator() is coordinators[0]
    )
    return wrong(results)
