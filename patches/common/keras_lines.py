"""What Keras 2 (tf_keras) and Keras 3 name differently: all else need not know of which of them a model is.

TensorFlow 2.13 to 2.15 bring Keras 2 as `keras`. Its modules are those of tf_keras; here and in the table of patches
they go by those names: what a patch relies on in tf_keras 2.16 to 2.21 is in Keras 2.13 to 2.15 as well.

Relies on (Keras 3.3 to 3.15; tf_keras 2.16 to 2.21), private: `Metric._variables` of Keras 3; of tf_keras
`Layer._trainable_weights` and `_non_trainable_weights`, `Model.compiled_loss` and `compiled_metrics`, their `built` and
`build`, `Optimizer._learning_rate`, `optimizer_v1.TFOptimizer`, `_hyper` of legacy optimizers, the folder
`src/engine`; and `tensorflow.python.autograph.core.ag_ctx`.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from matex_tf.errors import MatexError

#: How the names of the modules of Keras begin.
PREFIXES = ("keras.", "tf_keras.")


@functools.cache
def keras_is_2() -> bool:
    """Whether the package `keras` that is installed is Keras 2."""
    found = importlib.util.find_spec("keras")
    places = found.submodule_search_locations if found is not None else None
    return any(os.path.isdir(os.path.join(place, "src", "engine")) for place in places or ())


#: Modules of Keras 2, and their classes that apply gradients.
OPTIMIZERS_2 = {
    "tf_keras.src.optimizers.optimizer": ("_BaseOptimizer", "Optimizer"),
    "tf_keras.src.optimizers.legacy.optimizer_v2": ("OptimizerV2",),
    "tf_keras.src.mixed_precision.loss_scale_optimizer": ("LossScaleOptimizer", "LossScaleOptimizerV3"),
    "tf_keras.src.optimizers.optimizer_v1": ("TFOptimizer",),
}


def version() -> tuple[int, ...]:
    """The first two numbers of the version of the package `keras` that is imported."""
    module = sys.modules.get("keras.src.version") or sys.modules.get("keras")
    return tuple(map(int, str(getattr(module, "__version__", "0.0")).split(".")[:2]))


def has_keras_2() -> bool:
    """Whether Keras 2 is installed, under either name."""
    return keras_is_2() or importlib.util.find_spec("tf_keras") is not None


def place(module: str) -> str:
    """The name of a module, with Keras 2 as `tf_keras` where it is installed as `keras`."""
    return f"tf_{module}" if module.startswith("keras.") and keras_is_2() else module


def names(place: str) -> list[str]:
    """The names of a module that goes by the name `place`, see there; some of them may be those of another module."""
    return [place, place.removeprefix("tf_")] if place.startswith("tf_keras.") else [place]


def is_of_keras_2(module: str) -> bool:
    """Whether a module is of Keras 2, by its name."""
    return place(module).startswith("tf_keras.")


def is_keras_2(thing: Any) -> bool:
    """Whether a model, a layer or an optimizer is one of Keras 2, or derived from one."""
    return any(is_of_keras_2(cls.__module__) for cls in type(thing).__mro__)


def of_keras(code: Any) -> bool:
    """Whether a function, a method or a class is Keras' own code."""
    return str(inspect.unwrap(code).__module__).startswith(PREFIXES)


def trainer(module: ModuleType) -> str:
    """The name of the class of trainers in keras.src.trainers.trainer or of a backend: `BaseTrainer`
    and `Trainer`, and before 3.16 `Trainer` and `TensorFlowTrainer`; `JAXTrainer`."""
    names = ("BaseTrainer", "Trainer", "TensorFlowTrainer", "JAXTrainer")
    return next((name for name in names if hasattr(module, name)), names[1])


def path(variable: Any) -> str:
    """The name of a variable of Keras or TensorFlow, for messages."""
    return str(getattr(variable, "path", None) or variable.name)


def tensor(variable: Any) -> Any:
    """The value of a variable: a method of TensorFlow's variables, which are those of Keras 2."""
    return variable.value() if callable(variable.value) else variable.value


def handle(variable: Any) -> Any:
    """The resource of a variable."""
    return variable.handle if hasattr(variable, "handle") else variable.value.handle


def states(metric: Any) -> list[Any]:
    """The variables that a metric holds itself, without those of metrics within it."""
    if hasattr(metric, "_variables"):
        return list(metric._variables)
    return [*metric._trainable_weights, *metric._non_trainable_weights]


def trainable(layer: Any) -> list[Any]:
    """The variables that a layer holds itself and has made to be trained, also where it is frozen."""
    own = getattr(layer, "_trainable_variables", None)
    return list(layer._trainable_weights if own is None else own)


def flat(logs: dict[str, Any]) -> dict[str, Any]:
    """Logs whose dicts (the result of a group of metrics) are spread out, as Keras does before callbacks see them."""
    spread: dict[str, Any] = {}
    for key, value in logs.items():
        spread.update(flat(value) if isinstance(value, dict) else {key: value})
    return spread


def metric_groups(model: Any) -> list[Any]:
    """What `compile` has made of a model's losses and metrics, and what makes metrics once it sees a batch."""
    if is_keras_2(model):
        groups = [getattr(model, name, None) for name in ("compiled_loss", "compiled_metrics")]
        return [group for group in groups if group is not None]
    return list(model.metrics)


def optimizer_classes() -> tuple[type, ...]:
    """The base classes of the optimizers of every Keras that is imported."""
    found = []
    for name, path_of in itertools.product(("keras", "tf_keras"), ("", "legacy")):
        holder = getattr(sys.modules.get(name), "optimizers", None)
        if path_of:
            holder = getattr(holder, path_of, None)
        if holder is not None and hasattr(holder, "Optimizer"):
            found.append(holder.Optimizer)
    for name in names("tf_keras.src.optimizers.optimizer_v1"):
        found += [sys.modules[name].TFOptimizer] if hasattr(sys.modules.get(name), "TFOptimizer") else []
    return tuple(found)


def optimizers_of(model: Any) -> list[Any]:
    """The optimizers that a model holds as attributes, the compiled one first."""
    held, classes = [getattr(model, "optimizer", None), *vars(model).values()], optimizer_classes()
    return list({id(o): o for o in held if isinstance(o, classes)}.values())


def layer_classes() -> tuple[type, ...]:
    """The base classes of the layers of every Keras that is imported."""
    holders = [getattr(sys.modules.get(name), "layers", None) for name in ("keras", "tf_keras")]
    return tuple(holder.Layer for holder in holders if holder is not None and hasattr(holder, "Layer"))


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The variables of an optimizer: a method of the old optimizers of Keras 2, and of those of TensorFlow 1."""
    if of_tensorflow_1(optimizer):
        return [optimizer.iterations, *optimizer.optimizer.variables()]
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def of_tensorflow_1(optimizer: Any) -> bool:
    """Whether it is what Keras 2 makes of an optimizer of `tf.compat.v1.train`."""
    return type(optimizer).__name__ == "TFOptimizer"


def variables(model: Any, name: str = "variables") -> list[Any]:
    """The variables of a model or a layer; none of one of Keras 2 that has yet to make them.

    What Keras 2 lists among them for the vocabulary of a layer such as `TextVectorization` is not one of them.

    Args:
        name: of the attribute that lists them.
    """
    try:
        return [variable for variable in getattr(model, name) if hasattr(variable, "assign")]
    except ValueError:
        if not is_keras_2(model):
            raise
        return []


def give_variables(optimizer: Any, variables: list[Any]) -> None:
    """Have an optimizer of Keras 2 make its own variables.

    Args:
        optimizer: of Keras 2. variables: that it will update.

    Raises:
        MatexError: it cannot do so before its first update.
    """
    if of_tensorflow_1(optimizer):
        raise MatexError(
            f"{type(optimizer.optimizer).__name__} is an optimizer of TensorFlow 1, whose updates cannot wait: take "
            "one of tf.keras.optimizers, or leave out --strategy pipe and backward_passes_per_step."
        )
    if hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(variables)
    else:
        optimizer.build(variables)


def rates(optimizer: Any) -> dict[str, float]:
    """What an optimizer of Keras 2 has in variables that it does not list: its learning rate, and those of old ones."""
    if not is_keras_2(optimizer):
        return {}
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    given = getattr(optimizer, "_hyper", None) or {"learning_rate": getattr(optimizer, "_learning_rate", None)}
    numbers = (int, float, np.number)
    found = {name: value.numpy() if hasattr(value, "numpy") else value for name, value in given.items()}
    return {name: float(value) for name, value in found.items() if isinstance(value, numbers)}


def set_rates(optimizer: Any, given: dict[str, float]) -> None:
    """Let an `optimizer` have the rates `given` again, numbers by their names."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    for name, value in given.items():
        setattr(optimizer, name, value)


def mask(value: Any) -> Any:
    """The mask that a layer has left on a tensor, or None."""
    found = getattr(value, "_keras_mask", None)
    if found is None and not keras_is_2():
        ask = getattr(sys.modules.get("keras.src.backend.common.masking"), "get_keras_mask", None)  # of newer Keras 3
        found = ask(value) if ask is not None else None
    return found


def set_mask(value: Any, mask: Any) -> None:
    """Leave a `mask`, booleans of the first axes of `value`, on this tensor, as layers do."""
    value._keras_mask = mask


def converted(function: Callable[..., Any], itself: bool = True) -> Callable[..., Any]:
    """A function of the script as Keras 2 calls it: in a graph, AutoGraph makes graphs of its `if` and `while`.

    Args:
        itself: or else only in what is called by it and asks for that, such as the `call` of layers.
    """
    import tensorflow as tf

    context = importlib.import_module("tensorflow.python.autograph.core.ag_ctx")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            return function(*args, **kwargs)
        enabled = context.ControlStatusCtx(context.Status.ENABLED)
        with enabled:
            if not itself:
                return function(*args, **kwargs)
            return tf.__internal__.autograph.tf_convert(function, enabled)(*args, **kwargs)

    return tf.autograph.experimental.do_not_convert(call)


def build_before_fit(model: Any, x: Any) -> None:
    """Give a Sequential without an Input the weights that its first batch would give it.

    Args:
        model: that `fit` is called on; any other model, and one that is built, stays as it is.
        x: what `fit` gets as that: an array or a tensor, or a batched tf.data pipeline. Of others nothing is known.
    """
    if model.built or not any(kind.__name__ == "Sequential" for kind in type(model).__mro__):
        return
    one = getattr(x, "element_spec", x)
    shape = getattr(one[0] if isinstance(one, tuple) else one, "shape", None)
    if shape is None or getattr(shape, "rank", 1) is None:
        return
    if len(shape) and None not in tuple(shape)[1:]:
        model.build((None, *tuple(shape)[1:]))
