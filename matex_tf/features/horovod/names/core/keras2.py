"""What scripts for Horovod still use and Keras 3 or TensorFlow 2 has taken away; served in such scripts alone.

    optimizer.lr, Optimizer(lr=…)              the learning rate
    optimizer.variables()                      variables is a list there
    model.compile(experimental_run_tf_function=…)   taken and ignored: Keras 3 has one way to train
    model.fit_generator and its kin            fit, evaluate and predict
    BatchNormalization(fused=…)                taken and ignored
    variable.ref()                             as that of a tf.Variable
    keras.preprocessing.image.ImageDataGenerator    from Keras' own legacy part
    losses and metrics as functions            tf.keras.losses.mean_squared_error and the like
    tf.ConfigProto, tf.Session                 those of tf.compat.v1
    keras.backend.set_session                  its GPU is made the visible one; the rest is ignored, and a line says so

Relies on (Keras 3.3 to 3.15), private: `keras.src.optimizers.base_optimizer.BaseOptimizer`, its property `variables`
and its `__init__(learning_rate, …)`; `keras.src.trainers.trainer.Trainer.compile`;
`keras.src.layers.normalization.batch_normalization.BatchNormalization`; `keras.src.legacy.preprocessing.image`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import sys
from typing import Any

import keras
import tensorflow as tf
import wrapt

from matex_tf.patches.common import keras_lines, log_once

_BASE = "keras.src.optimizers.base_optimizer"


class VariableList(list):
    """`optimizer.variables`, and `optimizer.variables()` as scripts for older versions of Keras have it."""

    def __call__(self) -> VariableList:
        return self


@functools.cache  # once
def install() -> None:
    """Serve all this, or of it what Keras 2 has not, where that is the Keras. May be called more than once."""
    for name in ("ConfigProto", "Session"):
        _give(tf, name, getattr(tf.compat.v1, name))
    for package in {keras, tf.keras, sys.modules.get("tf_keras", keras)}:
        _give(package.backend, "set_session", set_session)
    if not keras_lines.keras_is_2():
        _serve_on_keras_3()


def _serve_on_keras_3() -> None:
    base = importlib.import_module(_BASE).BaseOptimizer
    wrapt.wrap_function_wrapper(_BASE, "BaseOptimizer.__init__", _with_rate)
    inherited = base.variables
    base.variables = property(lambda optimizer: VariableList(inherited.fget(optimizer)))
    base.lr = property(operator.attrgetter("learning_rate"), lambda own, value: setattr(own, "learning_rate", value))
    trainer = importlib.import_module("keras.src.trainers.trainer")
    compiling = f"{keras_lines.trainer(trainer)}.compile"
    wrapt.wrap_function_wrapper(trainer, compiling, _without("experimental_run_tf_function"))
    normalization = "keras.src.layers.normalization.batch_normalization"
    wrapt.wrap_function_wrapper(normalization, "BatchNormalization.__init__", _without("fused"))
    keras.Model.fit_generator = _through("fit")
    keras.Model.evaluate_generator = _through("evaluate")
    keras.Model.predict_generator = _through("predict")
    keras.Variable.ref = lambda variable: variable.value.ref()
    legacy = importlib.import_module("keras.src.legacy.preprocessing.image")
    for package in (keras, tf.keras):
        _give(package.preprocessing.image, "ImageDataGenerator", legacy.ImageDataGenerator)
        for kind in ("losses", "metrics"):
            for name, value in vars(getattr(keras, kind)).items():
                if callable(value) and not name.startswith("_"):
                    _give(getattr(package, kind), name, value)


def _give(module: Any, name: str, value: Any) -> None:
    """Let a module have a name, unless it has it."""
    if not hasattr(module, name):
        setattr(module, name, value)


def _with_rate(wrapped: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
    if "lr" in kwargs:
        kwargs = {**kwargs, "learning_rate": kwargs["lr"]}
        del kwargs["lr"]
        args = args[1:]
    return wrapped(*args, **kwargs)


def _without(name: str) -> Any:
    def call(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **{key: value for key, value in kwargs.items() if key != name})

    return call


def _through(name: str) -> Any:
    def call(model: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        for option in ("max_queue_size", "workers", "use_multiprocessing", "pickle_safe"):
            kwargs.pop(option, None)
        if name == "fit" and args:  # steps_per_epoch stood second
            kwargs["steps_per_epoch"], *rest = args
            kwargs.update(zip(("epochs", "verbose", "callbacks", "validation_data"), rest, strict=False))
        elif args:
            kwargs["steps"] = args[0]
        return getattr(model, name)(generator, **kwargs)

    call.__name__ = f"{name}_generator"
    call.__doc__ = f"`{name}`, as it was called for generators."
    return call


def set_session(session: Any) -> None:
    """Make the GPU that a session's config names the visible one, as Keras has no sessions with TensorFlow 2."""
    options = session._config.gpu_options if session._config is not None else None
    gpus = tf.config.list_physical_devices("GPU")
    if options is not None and gpus and options.visible_device_list:
        wanted = [gpus[int(number)] for number in options.visible_device_list.split(",")]
        with contextlib.suppress(RuntimeError):  # TensorFlow has begun with its GPUs: they stay as they are
            tf.config.set_visible_devices(wanted, "GPU")
    log_once.log("of keras.backend.set_session only the choice of a GPU is used: TensorFlow 2 has no sessions")
