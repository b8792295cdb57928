"""Ops that are made once more are those that TensorFlow would make."""

import pytest


@pytest.fixture(scope="module")
def made():
    """The same op of a graph, made by TensorFlow itself and by `copies`, on inputs of another shape."""
    import tensorflow as tf

    from matex_tf.patches.partition import copies

    def both(make, *shapes):
        graph, found = tf.Graph(), []
        with graph.as_default():
            op = make(*(tf.compat.v1.placeholder(tf.float32, [None, *shape[1:]]) for shape in shapes)).op
        outside = tf.constant(2.0)
        for quick in (False, True):

            def step(quick=quick):
                new = tf.compat.v1.get_default_graph()
                given = [tf.compat.v1.placeholder(tf.float32, shape) for shape in shapes] or [outside]
                first = tf.raw_ops.NoOp()
                attributes = dict(op.node_def.attr)
                types = [tensor.dtype for tensor in op.outputs]
                with tf.device("CPU:1"), tf.control_dependencies([first]):
                    if quick:
                        result = copies.again(new, op, given, attributes, "made")
                    else:
                        result = new._create_op_internal(op.type, given, types, attrs=attributes, name="made")
                definition = result.node_def
                shown = [str(tensor.shape) for tensor in result.outputs]
                found.append((definition.SerializeToString(deterministic=True), shown, result.device))

            tf.compat.v1.wrap_function(step, [])
        return found

    return both


def test_the_op_is_the_same(made):
    """Its attributes, inputs, shapes, device, and what it waits for; lists of inputs too."""
    import tensorflow as tf

    for make, *shapes in (
        (lambda x, y: tf.matmul(x, y, transpose_b=True), (7919, 3), (4, 3)),
        (lambda x, y: tf.add_n([x, y]), (7919, 3), (7919, 3)),
        (lambda x: tf.raw_ops.Unpack(value=x, num=3, axis=1)[0], (7919, 3)),
    ):
        own, copied = made(make, *shapes)
        assert own == copied


def test_what_comes_from_outside_is_captured():
    """As TensorFlow does it."""
    import tensorflow as tf
    from tensorflow.python.framework import func_graph

    from matex_tf.patches.partition import copies

    with tf.Graph().as_default():
        op = tf.negative(tf.compat.v1.placeholder(tf.float32, [])).op
    outside, graph = tf.constant(2.0), func_graph.FuncGraph("new")
    with graph.as_default():
        result = copies.again(graph, op, [outside], dict(op.node_def.attr), "made")
    assert graph.external_captures == [outside]
    assert result.inputs[0] is graph.internal_captures[0]


def test_inputs_that_do_not_fit_are_an_error():
    """A ValueError, which says that nothing is known of the op for the prime number of rows."""
    import tensorflow as tf
    from tensorflow.python.framework import func_graph

    from matex_tf.patches.partition import copies

    with tf.Graph().as_default():
        op = tf.reshape(tf.compat.v1.placeholder(tf.float32, [None]), [4, 2]).op
    graph = func_graph.FuncGraph("new")
    with graph.as_default(), pytest.raises(ValueError, match="reshape"):
        given = [tf.compat.v1.placeholder(tf.float32, [7919]), tf.constant([4, 2])]
        copies.again(graph, op, given, dict(op.node_def.attr), "made")
