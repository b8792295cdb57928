"""Which sums of a step are gradients, and may be encoded on their way: those, and no others."""

import keras
import pytest
import tensorflow as tf

from matex_tf.patches.partition.ranks import Ranks
from matex_tf.patches.partition.step import Partitioned


class Seen(keras.layers.Layer):
    """Follows the mean of its rows; has the shape of a bias."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

    def call(self, x):
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, 0))
        return x


def _shapes(optimizer, **options):
    """Of a model's step: the shapes of the sums that are gradients, and of the others that travel with them."""
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), Seen(), keras.layers.Dense(4)])
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False, **options)
    model.optimizer.build(model.trainable_variables)
    model.train_step((tf.ones((2, 6)), tf.ones((2, 4))))  # makes the metrics
    specs = tf.TensorSpec([None, 6]), tf.TensorSpec([None, 4])
    traced = tf.function(lambda *data: model.train_step(data)).get_concrete_function(*specs)
    weights = [variable.handle for variable in traced.variables if variable.trainable]
    plan = Partitioned(traced, [True, True], Ranks(), weights=weights).plan
    others = [tensor for tensor in plan.exchanges if tensor not in plan.gradients]
    return sorted(plan.shaped.shape(one) for one in plan.gradients), sorted(plan.shaped.shape(one) for one in others)


@pytest.mark.parametrize("optimizer", [
    lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    lambda: keras.optimizers.AdamW(0.1, global_clipnorm=1.0),
    lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)),
], ids=["momentum", "clipped", "scaled"])  # fmt: skip
def test_gradients_and_no_others(optimizer):
    """The state of a layer has the shape of a bias, and is none; nor are losses and metrics."""
    gradients, others = _shapes(optimizer())
    assert gradients == [[4], [4], [4, 4], [6, 4]], gradients
    assert [4] in others and [] in others and [6, 4] not in others, others
