"""A variational autoencoder of digits with TensorFlow Probability's layers, on Keras 2.

Needs tensorflow-probability, tf_keras and scikit-learn. Run it by itself, or on several ranks as it is:

    matex-tf run -n 3 vae.py
"""

import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras as keras
from sklearn.datasets import load_digits

CODES = 3
keras.utils.set_random_seed(1)
x = (load_digits().data[:400] > 7).astype("float32")
prior = tfp.distributions.MultivariateNormalDiag(tf.zeros(CODES), tf.ones(CODES))
encoder = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(tfp.layers.MultivariateNormalTriL.params_size(CODES)),
        tfp.layers.MultivariateNormalTriL(
            CODES, activity_regularizer=tfp.layers.KLDivergenceRegularizer(prior, weight=1.0)
        ),
    ]
)
decoder = keras.Sequential(
    [
        keras.layers.Input((CODES,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(tfp.layers.IndependentBernoulli.params_size(64)),
        tfp.layers.IndependentBernoulli(64, tfp.distributions.Bernoulli.logits),
    ]
)
model = keras.Model(encoder.inputs, decoder(encoder.outputs[0]))
model.compile(keras.optimizers.Adam(0.01), loss=lambda x, made: -made.log_prob(x))
history = model.fit(x, x, batch_size=50, epochs=4, verbose=0)
print("loss by epoch:", " ".join(f"{loss:.5f}" for loss in history.history["loss"]))
