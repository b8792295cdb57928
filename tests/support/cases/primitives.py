"""The collectives of `matex_tf.core.world`, without Keras."""

from __future__ import annotations

import numpy as np

from matex_tf.core import world

DTYPES = ["float32", "float64", "float16", "int8", "uint8", "int32", "int64", "uint16", "bool", "complex64",
          "complex128", "<U5", "S3", "datetime64[s]", "object"]  # fmt: skip


def meet():
    """Meetings that agree, with and without details."""
    ranks = world.current()
    for _ in range(50):
        ranks.barrier("agree")
        ranks.barrier("agree on things", ["one thing", "another"])
    return True


def disagree(how):
    """Meetings that do not agree.

    Args:
        how: "purpose", "item", "count".
    """
    ranks = world.current()
    last = ranks.rank == ranks.size - 1
    if how == "purpose":
        ranks.barrier("evaluate" if last else "train")
    elif how == "item":
        ranks.barrier("compare shapes", ["a (3,)", "b (5,)" if last else "b (4,)"])
    else:
        ranks.barrier("compare shapes", ["a (3,)"] if last else ["a (3,)", "b (4,)"])


def meet_again():
    """After a disagreement the ranks can still meet, and the next sum is right."""
    from matex_tf.errors import RanksDisagree

    ranks = world.current()
    caught = 0
    for _ in range(3):
        try:
            disagree("purpose")
        except RanksDisagree:
            caught += 1
    return caught, ranks.allreduce(np.arange(3.0) * (ranks.rank + 1), "add").tolist()


def sums():
    """Sums of several dtypes and shapes; the arguments stay as they were."""
    ranks = world.current()
    result = {}
    for dtype in ("int32", "int64", "float32", "float64", "complex64"):
        for shape in ((), (0,), (1,), (1000,), (3, 4, 5)):
            mine = (np.arange(int(np.prod(shape))).reshape(shape) + ranks.rank).astype(dtype)
            total = ranks.allreduce(mine, "add")
            expected = sum((np.arange(int(np.prod(shape))).reshape(shape) + r).astype(dtype) for r in range(ranks.size))
            kept = np.array_equal(mine, (np.arange(int(np.prod(shape))).reshape(shape) + ranks.rank).astype(dtype))
            right = np.array_equal(total, expected) and total.shape == shape and total.dtype == np.dtype(dtype)
            result[f"{dtype} {shape}"] = bool(right and kept)
    return result


def rows_of(rank, dtype, shape=(2,)):
    """`rank` rows of a dtype: none on rank 0."""
    numbers = np.arange(rank * int(np.prod(shape))).reshape(rank, *shape) + 10 * rank
    if dtype == "object":
        return np.array([f"row {number}" for number in numbers.ravel()], object).reshape(numbers.shape)
    if dtype == "datetime64[s]":
        return numbers.astype("int64").astype(dtype)
    return numbers.astype(dtype)


def gathered_rows():
    """Rows joined over ranks, none of them on rank 0, for many dtypes."""
    ranks = world.current()
    result = {}
    for dtype in DTYPES:
        for shape in ((), (2,), (2, 3), (0,)):
            joined = ranks.allgather_rows(rows_of(ranks.rank, dtype, shape), "join")
            expected = np.concatenate([rows_of(rank, dtype, shape) for rank in range(ranks.size)])
            same = joined.dtype == expected.dtype and joined.shape == expected.shape
            result[f"{dtype} {shape}"] = bool(same and np.array_equal(joined, expected))
    nothing = ranks.allgather_rows(np.zeros((0, 3)), "join nothing")
    result["no rows anywhere"] = nothing.shape == (0, 3)
    strided = np.arange(24.0).reshape(4, 6)[:, ::2]
    result["not contiguous"] = bool(np.array_equal(ranks.allgather_rows(strided, "join")[:4], strided))
    return result


def gathered_columns_differ():
    """Rows with other columns on the last rank."""
    ranks = world.current()
    ranks.allgather_rows(np.zeros((2, 4 if ranks.rank == ranks.size - 1 else 3)), "join")


def shared():
    """Objects and arrays of a root, on every rank."""
    ranks = world.current()
    root = ranks.size - 1
    objects = ranks.broadcast({"from": ranks.rank, "array": np.arange(3)}, "share", root=root)
    arrays = {}
    for dtype in ("float32", "float16", "int8", "bool", "complex128"):
        array = ranks.broadcast_array(np.full((2, 3), ranks.rank + 1).astype(dtype))
        arrays[dtype] = bool((array == np.ones((2, 3), dtype)).all() and array.dtype == dtype)
    scalar = ranks.broadcast_array(np.array(ranks.rank, "float32"))
    gathered = ranks.allgather(("rank", ranks.rank), "gather")
    return objects["from"] == root, arrays, scalar.shape, float(scalar), gathered


def scattered():
    """Each rank's own of a root's values; and the same in a world of one rank."""
    ranks = world.current()
    root = ranks.size - 1
    values = [f"for rank {rank}".encode() for rank in range(ranks.size)] if ranks.rank == root else None
    return ranks.scatter(values, "scatter", root=root), world.World().scatter(["mine"], "scatter")


def subsets():
    """Worlds within a world, in an order of their own; used for a while and given back."""
    ranks = world.current()
    outside = world.size()
    backwards = list(range(ranks.size))[::-1]
    turned = ranks.subset(backwards)
    firsts = ranks.subset([0])
    seen = [turned.rank, turned.size, turned.allgather(ranks.rank, "who"), firsts is not None]
    with world.use(turned):
        seen.append((world.rank(), world.size(), world.current() is turned))
        inner = world.current().allreduce(np.array([1]), "count")[0]
    seen += [int(inner), world.size() == outside, world.current() is ranks]
    if firsts is not None:
        firsts.barrier("alone")
        firsts.free()
    turned.free()
    return seen


def alone():
    """A world of one rank, without a communicator."""
    one = world.World()
    array = np.arange(3.0)
    total = one.allreduce(array, "add")
    return (
        one.is_single, one.rank, one.size, total.tolist(), total is not array, one.broadcast(5, "share"),
        one.allgather("x", "gather"), one.allgather_rows(array, "join").tolist(), one.subset([0]) is one,
    )  # fmt: skip
