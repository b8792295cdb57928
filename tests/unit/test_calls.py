"""What made a dataset, see `patches/sources/calls.py`: known from public calls and from structure, by no class."""

import ast
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from matex_tf import patches
from matex_tf.patches.sources import calls
from tests.support.kept_calls import calls_are_kept  # noqa: F401

OURS = Path(patches.__file__).parent


pytestmark = pytest.mark.usefixtures("calls_are_kept")


def numbers():
    return tf.data.Dataset.range(20)


#: By kind: what is known by that kind, in every way that there is to make it.
KINDS = {
    "range": lambda: [numbers(), numbers().enumerate()._inputs()[0]],
    "from_tensors": lambda: [tf.data.Dataset.from_tensors(1), tf.data.Dataset.from_tensor_slices([1, 2])],
    "zip": lambda: [tf.data.Dataset.zip((numbers(), numbers())), numbers().enumerate()],
    "map": lambda: [numbers().map(lambda x: x), numbers().map(lambda x: (x, x), 2, deterministic=False)],
    "flat_map": lambda: [
        numbers().flat_map(tf.data.Dataset.range),
        numbers().interleave(tf.data.Dataset.range),
        numbers().interleave(tf.data.Dataset.range, 3, num_parallel_calls=2),
    ],
    "batch": lambda: [numbers().batch(3), numbers().batch(3, num_parallel_calls=2), numbers().ragged_batch(3)],
    "padded_batch": lambda: [numbers().padded_batch(3)],
    "filter": lambda: [numbers().filter(lambda x: x > 3)],
    "with_options": lambda: [numbers().with_options(tf.data.Options())],
    "shuffle": lambda: [numbers().shuffle(3, seed=1)],
    "cache": lambda: [numbers().cache()],
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind):
    assert [calls.kind(one) for one in KINDS[kind]()] == [kind] * len(KINDS[kind]())


def test_what_looks_at_elements_has_no_kind():
    """`unique`, `take_while` and the like have the structure of their input, and are none of these."""
    others = [
        numbers().unique(),
        numbers().take_while(lambda x: x < 3),
        numbers().scan(np.int64(0), lambda state, x: (state + x, state)),
        numbers().batch(2).unbatch(),
        numbers().window(3),
        numbers().ignore_errors(),
        tf.data.Dataset.random(seed=3),
        numbers().apply(tf.data.experimental.map_and_batch(lambda x: x, 4)),
        numbers().group_by_window(lambda x: x % 2, lambda _, data: data.batch(4), 4),
    ]
    assert [calls.kind(one) for one in others] == [""] * len(others)


def test_again():
    """A call is done again with the arguments of its time."""
    count, shard = tf.Variable(np.int64(5)), np.array(1)
    data = [numbers().take(count), numbers().skip(count=5), numbers().repeat(2), numbers().shard(4, index=shard)]
    count.assign(7)
    shard[...] = 2
    tens = tf.data.Dataset.range(0, 200, 10)
    for one in data:
        again = calls.of(one).again(tens)
        assert [10 * int(x) for x in one] == [int(x) for x in again] != []
    assert int(calls.of(data[0]).first("count")) == int(calls.of(data[1]).first("count")) == 5


def test_no_private_class_is_known():
    """Names of private classes of tf.data stand in no file: they change with versions."""
    classes = {f"_{kind}Dataset" for kind in ("Map", "ParallelMap", "Prefetch", "Options", "Zip", "Take", "Skip")}
    classes |= {f"_{kind}Dataset" for kind in ("Repeat", "Shard", "Shuffle", "Batch", "ParallelBatch", "PaddedBatch")}
    classes |= {f"_{kind}Dataset" for kind in ("FlatMap", "Interleave", "Filter", "Variant", "Range", "TensorSlice")}
    named = {
        f"{path.relative_to(OURS)}: {node.value}"
        for path in sorted(OURS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in classes
    }
    assert not named
