"""Integers that follow from shapes: what NumPy computes of them is what TensorFlow's ops give."""

import numpy as np
import pytest


def _functions():
    import tensorflow as tf

    vector = tf.constant([7, 2, 9, 4, 5])
    return {
        "Cast": [lambda: tf.cast(vector, tf.int64), lambda: tf.cast(tf.constant([True, False]), tf.int32)],
        "ConcatV2": [lambda: tf.concat([vector, vector[1:2]], 0), lambda: tf.concat([vector[None], vector[None]], -1)],
        "FloorMod": [lambda: tf.math.floormod(vector - 6, 3)],
        "GatherV2": [lambda: tf.gather(vector, [3, 0]), lambda: tf.gather(vector[None], 2, axis=1)],
        "Pack": [lambda: tf.stack([vector, vector]), lambda: tf.stack([vector, vector], 1)],
        "StridedSlice": [
            lambda: vector[1], lambda: vector[-1], lambda: vector[1:-1], lambda: vector[::-1], lambda: vector[3:],
            lambda: vector[:-2], lambda: vector[-2:1:-1], lambda: vector[4:2], lambda: vector[2:40],
            lambda: vector[None], lambda: vector[..., 1:],
        ],
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["Cast", "ConcatV2", "FloorMod", "GatherV2", "Pack", "StridedSlice"])
def test_by_numpy(kind, monkeypatch):
    """For each way in which an op is called."""
    import tensorflow as tf

    from matex_tf.patches.partition.shapes import affine

    assert kind in affine._BY_NUMPY
    for function in _functions()[kind]:
        graph = tf.function(function).get_concrete_function().graph
        ops = [op for op in graph.get_operations() if op.type == kind]
        assert ops
        for op in ops[:1]:
            given = [tf.get_static_value(tensor) for tensor in op.inputs]
            if any(value is None for value in given):  # what the function captured
                captured = {id(tensor): value.numpy() for value, tensor in graph.captures}
                given = [captured.get(id(t), v) for t, v in zip(op.inputs, given, strict=True)]
            if any(value is None for value in given):
                continue
            quick = affine.eagerly(op, [np.asarray(value, np.int64) for value in given])
            with monkeypatch.context() as patch:
                patch.setattr(affine, "_BY_NUMPY", {})
                exact = affine.eagerly(op, [np.asarray(value) for value in given])
            np.testing.assert_array_equal(quick[0], exact[0])
            assert quick[0].shape == exact[0].shape
