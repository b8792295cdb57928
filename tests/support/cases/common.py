"""What the cases share: small data, small models, and what to report of a training."""

from __future__ import annotations

import functools

import keras
import numpy as np
from keras import layers

KERAS = tuple(int(part) for part in keras.__version__.split(".")[:2])


def table(rows=101, columns=6, classes=3, seed=0):
    """Rows of float32 features, and the class of each as int32; the classes can be learned."""
    random = np.random.RandomState(seed)
    x = random.normal(size=(rows, columns)).astype("float32")
    y = (x @ random.normal(size=(columns, classes))).argmax(axis=1).astype("int32")
    return x, y


def weights_for(rows):
    """Uneven sample weights, some of them zero."""
    return (np.arange(rows) % 5 / 2).astype("float32")


def classifier(columns=6, classes=3, seed=7):
    """Two dense layers with logits; the seed makes the initial weights the same in every process."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential([layers.Input((columns,)), layers.Dense(8, activation="tanh"), layers.Dense(classes)])


def momentum(rate=0.1, **config):
    """SGD with momentum, in which a mistake of one step is carried into all that follow."""
    return keras.optimizers.SGD(rate, momentum=0.9, **config)


def crossentropy(**config):
    """The loss of `classifier`."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **config)


def compiled(model, optimizer=None, loss=None, metrics=("accuracy",), lazily=False, **options):
    """The model, compiled for classes unless said otherwise.

    Args:
        lazily: the first step makes the variables of the optimizer and the metrics, as in most scripts. TensorFlow
            traces such a step twice, which takes most of the time of a case: only cases that are about it ask for it.
    """
    if loss is None and metrics == ("accuracy",) and not lazily:
        metrics = [keras.metrics.SparseCategoricalAccuracy("accuracy")]  # what Keras makes of "accuracy" here
    model.compile(
        optimizer=momentum() if optimizer is None else optimizer,
        loss=crossentropy() if loss is None else loss,
        metrics=list(metrics) if isinstance(metrics, tuple) else metrics,
        **options,
    )
    return model if lazily else ready(model)


def ready(model):
    """The compiled model, with the variables of its optimizer: a step that makes them is traced twice."""
    if model.built and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return model


def result_of(model, history=None, **more):
    """Weights, optimizer state and history of a model, as arrays and numbers that travel."""
    result = {"weights": [np.array(weight) for weight in model.get_weights()], **more}
    if getattr(model, "optimizer", None) is not None:
        result["optimizer"] = [np.array(keras.ops.convert_to_numpy(v)) for v in model.optimizer.variables]
    if history is not None:
        result["history"] = numbers(history.history)
        result["epochs"] = list(history.epoch)
    return result


def numbers(value):
    """Logs as plain floats, arrays and containers."""
    if isinstance(value, dict):
        return {key: numbers(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [numbers(entry) for entry in value]
    array = np.asarray(value)
    return float(array) if array.ndim == 0 and array.dtype.kind in "fiub" else array


def by_patches(case):
    """A case about what the patches do: it runs with `--partitioner off`."""

    @functools.wraps(case)
    def run(*args, **kwargs):
        from matex_tf import settings  # here: plain Keras runs other cases

        before = settings.use(settings.current().changed(partitioner=False))
        try:
            return case(*args, **kwargs)
        finally:
            settings.use(before)

    return run
