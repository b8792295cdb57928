"""The collectives of `horovod.tensorflow`: every op, dtype and dimension, against NumPy."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import tensorflow as tf

from matex_tf.features.horovod.names.core import coordinator as coordinator_module
from tests.features.horovod.cases.horovod_script import hvd, script

INTEGERS = (tf.uint8, tf.int8, tf.int32, tf.int64)
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
EPS = {tf.float16: 1e-3, tf.bfloat16: 8e-3, tf.float32: 1e-6, tf.float64: 1e-12}
REDUCTIONS = {hvd.Sum: np.add, hvd.Average: np.add, hvd.Min: np.minimum, hvd.Max: np.maximum, hvd.Product: np.multiply}


def given(rank, dtype, shape, seed=0):
    """What a rank gives: small numbers, so that no sum and no product of four leaves an int8."""
    draw = np.random.default_rng([seed, rank, len(shape)])
    if dtype.is_bool:
        return draw.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        return draw.integers(0, 4, shape).astype(dtype.as_numpy_dtype)
    return (draw.random(shape) + 0.5).astype(np.float32).astype(dtype.as_numpy_dtype)


def same(got, expected, dtype):
    """Whether a result has the dtype, the shape and the values that it should."""
    got = np.asarray(got.numpy() if hasattr(got, "numpy") else got)
    if got.dtype != dtype.as_numpy_dtype or got.shape != np.shape(expected):
        return f"{got.dtype} {got.shape}, not {dtype.name} {np.shape(expected)}"
    far = EPS.get(dtype, 0)
    wide = np.asarray(expected, np.float64), got.astype(np.float64)
    return True if np.allclose(*wide, rtol=far * 4, atol=far) else f"{wide[1].ravel()[:4]}, not {wide[0].ravel()[:4]}"


def reduced(dtype, shape, op, size, seed=0):
    """The reduction over `size` ranks, in float64; of integers as integers."""
    parts = [
        given(rank, dtype, shape, seed).astype(np.int64 if dtype.is_integer else np.float64) for rank in range(size)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = REDUCTIONS[op](total, part)
    if op == hvd.Average:
        return total // size if dtype.is_integer else total / size
    return total


def wrong(results):
    """The entries that are not right; none where all are."""
    assert results
    return {name: value for name, value in results.items() if value is not True}


def shapes():
    """Of one, two and three dimensions, a scalar, and one with nothing in it."""
    return [(), (17,), (5, 7), (3, 4, 5), (0, 3)]


@script
def allreduce(graph):
    """Every reduction of every dtype and shape; in a graph, which takes long to trace, of one shape in each of them."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    combinations = list(itertools.product(INTEGERS + FLOATS, shapes()[3:4] if graph else shapes(), REDUCTIONS))

    def all_of_them(*tensors):
        return [hvd.allreduce(t, op=op) for t, (_, _, op) in zip(tensors, combinations, strict=True)]

    tensors = [tf.constant(given(rank, dtype, shape)) for dtype, shape, _ in combinations]
    done = (tf.function(all_of_them) if graph else all_of_them)(*tensors)
    for (dtype, shape, op), result in zip(combinations, done, strict=True):
        results[f"{dtype.name} {shape} {op}"] = same(result, reduced(dtype, shape, op, size), dtype)
    return wrong(results)


@script
def scaled():
    """Factors before and after, of every dtype; integers by way of float64, float16 by way of float32."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    for dtype in INTEGERS + FLOATS:
        for before, after in ((0.5, 1.0), (1.0, 1.5), (2.0, 0.25)):
            tensor = given(rank, dtype, (6, 2))
            for op in (hvd.Sum, hvd.Average):
                result = hvd.allreduce(tensor, op=op, prescale_factor=before, postscale_factor=after)
                wide = np.float64
                parts = [
                    (given(r, dtype, (6, 2)).astype(wide) * before).astype(dtype.as_numpy_dtype) for r in range(size)
                ]
                total = sum(part.astype(wide) for part in parts) * after / (size if op == hvd.Average else 1)
                total = np.trunc(total + 1e-9) if dtype.is_integer else total
                results[f"{dtype.name} {before} {after} {op}"] = same(result, total, dtype)
    return wrong(results)


@script
def grouped():
    """Several tensors at once, of several dtypes, dense and sparse; and none at all."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    cases = list(itertools.product(FLOATS + INTEGERS, [(17,), (5, 7)]))
    for op in (hvd.Sum, hvd.Average, hvd.Max):
        done = hvd.grouped_allreduce([given(rank, dtype, shape) for dtype, shape in cases], op=op)
        for (dtype, shape), result in zip(cases, done, strict=True):
            results[f"{dtype.name} {shape} {op}"] = same(result, reduced(dtype, shape, op, size), dtype)
    slices = tf.IndexedSlices(tf.fill([rank + 1, 2], 1.0 + rank), tf.range(rank + 1), (8, 2))
    dense, sparse = hvd.grouped_allreduce([tf.ones([3]), slices])
    values = np.concatenate([np.full((r + 1, 2), 1.0 + r) for r in range(size)]) / size
    results["beside sparse"] = same(dense, np.ones(3), tf.float32)
    results["sparse values"] = same(sparse.values, values, tf.float32)
    results["sparse indices"] = same(sparse.indices, np.concatenate([np.arange(r + 1) for r in range(size)]), tf.int32)
    results["none"] = hvd.grouped_allreduce([]) == []
    for place, part in enumerate(hvd.grouped_allgather([tf.fill([rank, 2], rank), tf.ones([1])])):
        rows = [np.full((r, 2), r) for r in range(size)] if place == 0 else [np.ones(1)] * size
        results[f"allgather {place}"] = same(part, np.concatenate(rows), (tf.int32, tf.float32)[place])
    for place, part in enumerate(hvd.grouped_reducescatter([tf.ones([size, 3]), tf.ones([2 * size])], op=hvd.Sum)):
        results[f"reducescatter {place}"] = same(part, np.full([(1, 3), (2,)][place], size), tf.float32)
    half = hvd.allreduce(tf.constant([1.0 + rank / 4096]), compression=hvd.Compression.fp16, op=hvd.Sum)
    expected = sum(np.float16(1.0 + r / 4096) for r in range(size))
    results["compressed"] = same(half, [expected], tf.float32)
    return wrong(results)


def rows_of(rank, dtype, rest, most=5):
    """Ragged rows of a rank; rank 1 has none."""
    return given(rank, dtype, (0 if rank == 1 else rank % most + 1, *rest))


@script
def allgather(graph):
    """Every dtype and dimension, ragged, a rank without rows, and nobody with any."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    for dtype in (tf.int8, tf.bfloat16, tf.float32, tf.bool) if graph else (*INTEGERS, *FLOATS, tf.bool, tf.uint16):
        rests = [(), (3,), (2, 3), (0,)]

        def all_of_them(*tensors):
            return [hvd.allgather(tensor) for tensor in tensors]

        function = tf.function(all_of_them, reduce_retracing=True) if graph else all_of_them
        done = function(*[tf.constant(rows_of(rank, dtype, rest), dtype) for rest in rests])
        for rest, result in zip(rests, done, strict=True):
            expected = np.concatenate([rows_of(r, dtype, rest) for r in range(size)])
            results[f"{dtype.name} {rest}"] = same(result, expected, dtype)
    results["nothing"] = same(hvd.allgather(tf.zeros([0, 3])), np.zeros((0, 3)), tf.float32)
    return wrong(results)


@script
def broadcast():
    """Every dtype, dimension and root; variables and objects."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    for dtype, shape, root in itertools.product((*INTEGERS, *FLOATS, tf.bool), shapes(), range(size)):
        result = hvd.broadcast(given(rank, dtype, shape), root)
        results[f"{dtype.name} {shape} {root}"] = same(result, given(root, dtype, shape), dtype)
    root = size - 1
    variables = [
        tf.Variable(given(rank, tf.float32, (3, 2))),
        tf.Variable(rank),
        tf.Variable(given(rank, tf.bool, (4,))),
    ]
    hvd.broadcast_variables(variables, root)
    results["variables"] = same(variables[0], given(root, tf.float32, (3, 2)), tf.float32)
    results["variable of int32"] = int(variables[1]) == root
    results["variable of bool"] = same(variables[2], given(root, tf.bool, (4,)), tf.bool)
    values = hvd.broadcast_([tf.Variable([rank + 0.5])], 0)
    results["in place"] = same(values[0], [0.5], tf.float32)
    results["object"] = hvd.broadcast_object({"rank": rank, "text": "x" * (rank + 1)}, root)["rank"] == root
    results["objects"] = hvd.allgather_object(("of", rank)) == [("of", r) for r in range(size)]
    return wrong(results)


def splits_of(rank, size):
    """How many rows a rank gives to each: none to itself's neighbour."""
    return [0 if other == (rank + 1) % size and size > 1 else (rank + other) % 3 + 1 for other in range(size)]


@script
def alltoall(graph):
    """Every dtype, with even splits, with uneven ones, with none, and where one gives nothing."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    plans = {"even": [2] * size, "uneven": splits_of(rank, size), "nothing": [0] * size}
    exchange = tf.function(hvd.alltoall, reduce_retracing=True) if graph else hvd.alltoall
    for dtype in (tf.uint8, tf.bfloat16, tf.float32, tf.bool) if graph else (*INTEGERS, *FLOATS, tf.bool):
        for name, splits in plans.items():
            for kind in (tf.int32,) if graph else (tf.int32, tf.int64):
                mine = given(rank, dtype, (sum(splits), 2), 1)
                got, counts = exchange(tf.constant(mine, dtype), tf.constant(splits, kind))
                expected, received = [], []
                for other in range(size):
                    theirs = {"even": [2] * size, "uneven": splits_of(other, size), "nothing": [0] * size}[name]
                    start = sum(theirs[:rank])
                    rows = given(other, dtype, (sum(theirs), 2), 1)[start : start + theirs[rank]]
                    expected.append(rows)
                    received.append(len(rows))
                results[f"{dtype.name} {name} {kind.name}"] = same(got, np.concatenate(expected), dtype)
                results[f"{dtype.name} {name} {kind.name} counts"] = same(counts, received, kind)
    even = hvd.alltoall(tf.fill([2 * size], rank))
    results["no splits"] = same(even, np.repeat(np.arange(size), 2), tf.int32)
    return wrong(results)


@script
def reducescatter(graph):
    """Every dtype, sum and average, rows that divide evenly and that do not."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    scatter = tf.function(hvd.reducescatter, reduce_retracing=True) if graph else hvd.reducescatter
    dtypes = (tf.int32, tf.bfloat16, tf.float64) if graph else INTEGERS + FLOATS
    for dtype, rows, op in itertools.product(dtypes, (4 * size, 4 * size + 1, 1), (hvd.Sum, hvd.Average)):
        got = scatter(tf.constant(given(rank, dtype, (rows, 3)), dtype), op=op)
        starts = np.cumsum([0] + [rows // size + (r < rows % size) for r in range(size)])
        expected = reduced(dtype, (rows, 3), op, size)[starts[rank] : starts[rank + 1]]
        results[f"{dtype.name} {rows} {op}"] = same(got, expected, dtype)
    return wrong(results)


@script
def gradients(graph):
    """Of every op, for float dtypes and dimensions: as Horovod registers them."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    combinations = itertools.product((tf.float32, tf.float64), (1, 2, 3))
    for dtype, dim in [(tf.float32, 2)] if graph else combinations:
        rest = (4,) * (dim - 1)
        ones = np.ones((rank + 1, *rest))
        splits = [rank + 1] * size
        # what goes in, the op, the gradient that comes back where what comes out has the gradient rank + 1
        mean, total = (size + 1) / 2, size * (size + 1) / 2
        cases = {
            "sum": (np.ones((3, *rest)), lambda t: hvd.allreduce(t, op=hvd.Sum), total),
            "average": (np.ones((3, *rest)), lambda t: hvd.allreduce(t, op=hvd.Average), mean),
            "scaled": (
                np.ones((3, *rest)),
                lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
                total * 1.5,
            ),
            "grouped": (np.ones((3, *rest)), lambda t: hvd.grouped_allreduce([t, t], op=hvd.Sum), 2 * total),
            "allgather": (ones, hvd.allgather, mean),
            "broadcast": (np.ones((3, *rest)), lambda t: hvd.broadcast(t, 0), mean if rank == 0 else 0.0),
            "alltoall": (
                np.ones((size * (rank + 1), *rest)),
                lambda t, splits=splits: hvd.alltoall(t, splits)[0],
                np.repeat(np.arange(1, size + 1), rank + 1).reshape(-1, *(1,) * (dim - 1)),
            ),
            "reducescatter": (
                np.ones((2 * size, *rest)),
                lambda t: hvd.reducescatter(t, op=hvd.Sum),
                size * np.repeat(np.arange(1, size + 1), 2).reshape(-1, *(1,) * (dim - 1)),
            ),
            "reducescatter average": (
                np.ones((2 * size, *rest)),
                lambda t: hvd.reducescatter(t, op=hvd.Average),
                np.repeat(np.arange(1, size + 1), 2).reshape(-1, *(1,) * (dim - 1)),
            ),
        }

        def all_of_them(*tensors, cases=cases):
            grads = []
            for tensor, (_, op, _) in zip(tensors, cases.values(), strict=True):
                with tf.GradientTape() as tape:
                    tape.watch(tensor)
                    out = tf.nest.flatten(op(tensor))
                grads.append(tape.gradient(out, tensor, [tf.ones_like(part) * (rank + 1.0) for part in out]))
            return grads

        tensors = [tf.constant(value, dtype) for value, _, _ in cases.values()]
        done = (tf.function(all_of_them) if graph else all_of_them)(*tensors)
        for (name, (value, _, expected)), grad in zip(cases.items(), done, strict=True):
            right = np.broadcast_to(np.asarray(expected, np.float64), value.shape)
            results[f"{name} {dtype.name} {dim}"] = same(grad, right, dtype)
    return wrong(results)


def _differ(how, odd):
    """One collective, with something else on the odd rank."""
    ones = tf.ones
    calls = {
        "shape": lambda: hvd.allreduce(ones([4 if odd else 3])),
        "dimensions": lambda: hvd.allreduce(ones([3, 1] if odd else [3])),
        "dtype": lambda: hvd.allreduce(ones([3], tf.float64 if odd else tf.float32)),
        "integer": lambda: hvd.allreduce(ones([3], tf.int32 if odd else tf.float32)),
        "op": lambda: hvd.allreduce(ones([3]), op=hvd.Sum if odd else hvd.Average),
        "min": lambda: hvd.allreduce(ones([3]), op=hvd.Min if odd else hvd.Sum),
        "prescale": lambda: hvd.allreduce(ones([3]), prescale_factor=2.0 if odd else 1.0),
        "group": lambda: hvd.grouped_allreduce([ones([3])] * (3 if odd else 2)),
        "columns": lambda: hvd.allgather(ones([2, 4 if odd else 3])),
        "rows": lambda: hvd.broadcast(ones([4 if odd else 3]), 0),
        "gathered dtype": lambda: hvd.allgather(ones([2], tf.int32 if odd else tf.int64)),
        "root": lambda: hvd.broadcast(ones([3]), 1 if odd else 0),
        "kind": lambda: hvd.broadcast(ones([3]), 0, name="x") if odd else hvd.allreduce(ones([3]), name="x"),
        "name": lambda: hvd.allreduce(ones([3]), name="b" if odd else "a"),
        "scattered": lambda: hvd.reducescatter(ones([6 if odd else 4])),
        "sent columns": lambda: hvd.alltoall(ones([hvd.size(), 3 if odd else 2])),
        "splits": lambda: hvd.alltoall(ones([hvd.size()]), [2] * hvd.size() if odd else [1] * hvd.size()),
        "all splits": lambda: hvd.alltoall(ones([hvd.size() + 1])),
        "scalar": lambda: hvd.allgather(tf.constant(1.0)),
    }
    return calls[how]()


@script
def differ(how, graph=""):
    """Ranks that differ; what each was told, and whether the next collective is right."""

    def run(make):
        if graph != "session":
            return (tf.function(make) if graph else make)()
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            return session.run(make())

    odd = hvd.rank() == hvd.size() - 1
    before, coordinator_module.PATIENCE = coordinator_module.PATIENCE, 0.3
    try:
        for _ in range(2):
            try:
                run(lambda: _differ(how, odd))
                told = ("nothing", "")
            except tf.errors.OpError as error:
                told = (type(error).__name__, str(error))
            total = run(lambda: hvd.allreduce(tf.fill([3], hvd.rank() + 1.0), op=hvd.Sum))
            assert np.array_equal(total, np.full(3, hvd.size() * (hvd.size() + 1) / 2)), total
    finally:
        coordinator_module.PATIENCE = before
    return told


@script
def joins():
    """Ranks that run out of data one after the other: the sums of the rest, and who was last."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    for first in range(size):
        turn = (rank - first) % size
        for step in range(2 * turn):
            live = [r for r in range(size) if 2 * ((r - first) % size) > step]
            total = hvd.allreduce(tf.constant([rank + 1.0, 1.0]), op=hvd.Sum)
            results[f"{first} {step}"] = same(total, [sum(r + 1 for r in live), len(live)], tf.float32)
            mean, short = hvd.grouped_allreduce([tf.fill([2], 1.0), tf.fill([3], tf.cast(2, tf.bfloat16))])
            results[f"{first} {step} mean"] = same(mean, np.full(2, len(live) / size), tf.float32)
            results[f"{first} {step} bfloat16"] = same(short, np.full(3, 2 * len(live) / size), tf.bfloat16)
            rows = hvd.allgather(tf.fill([2], rank))
            results[f"{first} {step} rows"] = same(rows, np.repeat(live, 2), tf.int32)
        results[f"{first} last"] = int(hvd.join()) == (first - 1) % size or size == 1
    results["all at once"] = int(hvd.join()) in range(size)
    results["after"] = same(hvd.allreduce(tf.ones([2]), op=hvd.Sum), np.full(2, size), tf.float32)
    return wrong(results)


@script
def refused_after_join():
    """What a joined rank cannot take part in is an error on the others, and joining goes on."""
    told = ""
    if hvd.rank() != 0:
        try:
            hvd.broadcast(tf.ones([2]), 1)
        except tf.errors.InvalidArgumentError as error:
            told = str(error)
    return told, int(hvd.join())


@script
def sets():
    """Process sets: every collective among some ranks, two of them at the same time, and their end."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    even = hvd.add_process_set(range(0, size, 2))
    odd = hvd.add_process_set(hvd.ProcessSet(list(range(1, size, 2))))
    mine = even if rank % 2 == 0 else odd
    results["numbers"] = (even.process_set_id, odd.process_set_id) == (1, 2)
    results["included"] = (even.included(), odd.included()) == (rank % 2 == 0, rank % 2 == 1)
    results["place"] = (mine.rank(), mine.size()) == (rank // 2, len(mine.ranks))
    results["op"] = int(hvd.process_set_included_op(mine.process_set_id)) == 1
    results["sizes"] = int(hvd.size_op(mine.process_set_id)) == mine.size()
    for op in (hvd.Sum, hvd.Average, hvd.Max):
        total = hvd.allreduce(tf.constant([1.0 + rank]), op=op, process_set=mine)
        parts = [1.0 + r for r in mine.ranks]
        right = {hvd.Sum: sum(parts), hvd.Average: np.mean(parts), hvd.Max: max(parts)}[op]
        results[f"allreduce {op}"] = same(total, [right], tf.float32)
    results["allgather"] = same(hvd.allgather([rank], process_set=mine), mine.ranks, tf.int32)
    results["broadcast"] = same(hvd.broadcast([rank], mine.ranks[-1], process_set=mine), [mine.ranks[-1]], tf.int32)
    results["object"] = hvd.allgather_object(rank, process_set=mine) == mine.ranks
    with tf.GradientTape() as tape:
        x = tf.Variable([1.0])
        y = hvd.allgather(x, process_set=mine)
    results["gradient"] = same(tape.gradient(y, x), [1.0], tf.float32)
    other = odd if mine is even else even
    for name, call in {
        "not a member": lambda: hvd.allreduce(tf.ones([1]), process_set=other),
        "twice": lambda: hvd.add_process_set(even.ranks),
        "no such rank": lambda: hvd.add_process_set([0, size]),
    }.items():
        try:
            call()
            results[name] = "went through"
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            results[name] = isinstance(error, ValueError) != (name == "not a member")
    results["removed"] = hvd.remove_process_set(odd) and odd.process_set_id is None
    results["of all"] = same(hvd.allreduce([1.0], op=hvd.Sum), [size], tf.float32)
    results["not of all"] = not hvd.remove_process_set(hvd.global_process_set)
    return wrong(results)


@script
def adasum():
    """Orthogonal gradients are added, parallel ones averaged; float16 too."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    for dtype in (tf.float16, tf.float32, tf.float64):
        apart = tf.one_hot(rank, size, dtype=dtype)
        results[f"orthogonal {dtype.name}"] = same(hvd.allreduce(apart, op=hvd.Adasum), np.ones(size), dtype)
        alike = tf.constant([1.0, 2.0, 3.0], dtype)
        results[f"parallel {dtype.name}"] = same(hvd.allreduce(alike, op=hvd.Adasum), [1, 2, 3], dtype)
        results[f"zeros {dtype.name}"] = same(hvd.allreduce(alike * 0, op=hvd.Adasum), [0, 0, 0], dtype)
    return wrong(results)


@script
def from_threads():
    """Named collectives in another order on each rank, from threads; each finds its own."""
    rank, size = hvd.rank(), hvd.size()
    names = [f"n{number}" for number in range(6)]
    order = names[rank % 6 :] + names[: rank % 6]
    got = {}

    def work(name):
        got[name] = float(hvd.allreduce(tf.constant(float(name[1:]) + rank), op=hvd.Sum, name=name))

    threads = [threading.Thread(target=work, args=(name,)) for name in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got == {name: float(name[1:]) * size + size * (size - 1) / 2 for name in names}


@script
def in_a_session():
    """A graph of a session, which has no order of its own: two collectives, and variables of rank 0."""
    rank, size = hvd.rank(), hvd.size()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [2])
        w = tf.compat.v1.get_variable("w", initializer=tf.constant([rank + 1.0, 0.0]), use_resource=True)
        total, rows = hvd.allreduce(x, op=hvd.Sum), hvd.allgather(w * 2)
        slope = tf.gradients(hvd.allreduce(w * w, op=hvd.Sum), w)[0]
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(0))
        both = session.run([total, rows], {x: [rank, 1.0]})
        return [
            np.array_equal(both[0], [size * (size - 1) / 2, size]),
            np.array_equal(both[1], [2.0, 0.0] * size),
            np.array_equal(session.run(slope), [2.0 * size, 0.0]),
        ]


@script
def many_in_a_session():
    """More collectives at once than TensorFlow has threads, with no order among them, of a graph that comes later."""
    rank, size = hvd.rank(), hvd.size()
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=2)
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        order = list(np.roll(range(24), 7 * rank))  # each rank makes its graph in another one
        sums = {n: hvd.allreduce(tf.fill([17], float(n + rank)), op=hvd.Sum, name=f"n{n}") for n in order}
        rows = {n: hvd.allgather(tf.fill([rank + 1], n), name=f"g{n}") for n in order}
        sums, rows = session.run([sums, rows])
        return [
            all(np.array_equal(sums[n], np.full(17, n * size + size * (size - 1) / 2)) for n in order),
            all(np.array_equal(rows[n], np.full(size * (size + 1) // 2, n)) for n in order),
        ]


@script
def who():
    """Ranks and sizes, what was built, and names that are not there."""
    ranks = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
    ops = [int(hvd.rank_op()), int(hvd.size_op()), int(hvd.local_rank_op()), int(hvd.local_size_op())]
    built = [
        hvd.mpi_built(),
        hvd.mpi_enabled(),
        hvd.mpi_threads_supported(),
        hvd.is_homogeneous(),
        hvd.is_initialized(),
    ]
    absent = [hvd.gloo_built(), hvd.gloo_enabled(), hvd.nccl_built(), hvd.ddl_built(), hvd.ccl_built()]
    absent += [hvd.cuda_built(), hvd.rocm_built(), hvd.gpu_available("tensorflow")]
    hvd.barrier()
    hvd.shutdown()
    told = []
    for call in (hvd.rank, hvd.size, lambda: hvd.allreduce(tf.ones([1]))):
        try:
            call()
        except ValueError as error:
            told.append(str(error))
    hvd.init()
    try:
        hvd.allredcue  # noqa: B018
    except AttributeError as error:
        told.append(str(error))
    return ranks, ops, built, [bool(one) for one in absent], told
