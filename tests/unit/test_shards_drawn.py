"""A rank's part of what an initializer gives."""

import math

import numpy as np
import pytest

#: By name, with their arguments.
INITIALIZERS = {
    "RandomUniform": {"minval": -0.05, "maxval": 0.05},
    "TruncatedNormal": {"mean": 0.1, "stddev": 0.5},
    "Constant": {"value": 0.3},
    "RandomNormal": {"mean": 0.1, "stddev": 0.5},
    "VarianceScaling": {"scale": 2.0, "mode": "fan_avg", "distribution": "untruncated_normal"},
    "GlorotUniform": {}, "GlorotNormal": {}, "HeNormal": {}, "HeUniform": {}, "LecunNormal": {}, "LecunUniform": {},
    "Zeros": {}, "Ones": {},
}  # fmt: skip


@pytest.mark.variants(3)
@pytest.mark.parametrize("name", INITIALIZERS)
def test_the_bits_of_the_whole(name):
    """For each dtype, with a part of one unit and with large ones."""
    import keras
    import tensorflow as tf

    from matex_tf.patches.partition import shards
    from matex_tf.patches.shards.drawn import Drawn

    seed = {} if name in ("Constant", "Zeros", "Ones") else {"seed": 3}
    initializer = getattr(keras.initializers, name)(**INITIALIZERS[name], **seed)
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        for shape, ranks in (((1001, 7), 3), ((40003, 3), 2), ((12, 5, 64), 60)):
            whole = tf.convert_to_tensor(initializer(shape, dtype=dtype)).numpy()
            drawn = Drawn(lambda shape=shape, dtype=dtype: initializer(shape, dtype=dtype))
            spans = [shards.span(math.prod(shape), rank, ranks) for rank in range(ranks)]
            parts = np.concatenate([drawn.part(*span).numpy() for span in spans])
            assert parts.tobytes() == whole.tobytes(), (dtype, shape)


def test_what_cannot_be_made_in_parts():
    """A value that is made of a whole one, of a variable, or of numbers that an array has."""
    import keras
    import tensorflow as tf

    from matex_tf.patches.shards.drawn import CannotDraw, Drawn

    variable = tf.Variable(1.0)
    for make in (
        lambda: keras.initializers.Orthogonal(seed=1)((64, 64)),
        lambda: keras.initializers.Identity()((64, 64)),
        lambda: variable * tf.ones([64, 64]),
        lambda: tf.constant(np.ones((64, 64))),
        lambda: tf.ones([64, 64]) * tf.constant(np.ones(64), tf.float32),
        lambda: tf.random.normal([64, 64], seed=1),
        lambda: tf.cumsum(tf.ones([64, 64])),
    ):
        with pytest.raises(CannotDraw):
            Drawn(make)
