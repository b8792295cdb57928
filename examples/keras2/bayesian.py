"""A Bayesian regression with TensorFlow Probability's layers, on Keras 2: weights and noise are distributions.

Needs tensorflow-probability and tf_keras. Run it by itself, or on several ranks as it is:

    matex-tf run -n 3 bayesian.py
"""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras as keras

ROWS = 150
keras.utils.set_random_seed(1)
random = np.random.RandomState(0)
x = random.uniform(-3, 3, (ROWS, 1)).astype("float32")
y = (np.sin(x) + 0.1 * (1 + np.abs(x)) * random.normal(size=x.shape)).astype("float32")


def divergence(posterior, prior, _):
    """Each row bears its part of the distance between what is known of the weights and what was before."""
    return tfp.distributions.kl_divergence(posterior, prior) / ROWS


def surprise(y, predicted):
    """How little the distribution that is predicted expects what was seen."""
    return -predicted.log_prob(y)


def distribution(parameters):
    return tfp.distributions.Normal(parameters[..., :1], 1e-3 + tf.math.softplus(0.05 * parameters[..., 1:]))


model = keras.Sequential(
    [
        keras.layers.Input((1,)),
        tfp.layers.DenseFlipout(12, activation="tanh", kernel_divergence_fn=divergence),
        tfp.layers.DenseReparameterization(2, kernel_divergence_fn=divergence),
        tfp.layers.DistributionLambda(distribution),
    ]
)
model.compile(keras.optimizers.Adam(0.02), loss=surprise)
history = model.fit(x, y, batch_size=25, epochs=6, verbose=0)
print("loss by epoch:", " ".join(f"{loss:.5f}" for loss in history.history["loss"]))
