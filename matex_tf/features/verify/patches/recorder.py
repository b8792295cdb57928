"""Writes down the logs, weights and slots of a training after each step, on rank 0; see `matex-tf verify`.

Steps of `fit` and `train_on_batch` are recorded when they are over; those of a loop of the script's own by `own_loops`.

Relies on (Keras 3.3 to 3.15): `CallbackList.on_train_batch_begin`, `on_train_batch_end`, `on_epoch_end`, `on_test_end`,
and `Trainer.fit`, `evaluate` and `train_on_batch`, public; `JAXTrainer.jax_state_sync`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import wrapt

from matex_tf import strategies
from matex_tf.core import starting, world
from matex_tf.features.verify import record
from matex_tf.patches.checking import precision
from matex_tf.patches.common import keras_lines, seeds, wrapping
from matex_tf.patches.common.active_flag import ActiveFlag
from matex_tf.state import run_state

#: While Keras' own loops are at work, whose steps are recorded by their callbacks.
in_keras = ActiveFlag("loops of Keras")


class Recorder:
    """Counts the steps of this process, and writes down what rank 0 has after each."""

    def __init__(self, environ: Mapping[str, str] = os.environ):
        """Args: environ: what is wanted, see `record`."""
        self._writer = record.Writer(environ.get(starting.RECORD, ""))
        self._wanted = int(environ.get(record.STEPS, "0"))
        self.nudge = int(environ.get(record.NUDGE, "0"))
        self.steps = 0

    def add(self, kind: str, values: dict[str, np.ndarray]) -> None:
        """Write down `values`, by name, of the step that was last; the `kind` is one of `record.Moment`."""
        if world.current().rank == 0 and values and (not self._wanted or self.steps <= self._wanted):
            self._writer.write(record.Moment(kind, self.steps, values))

    def add_variables(self, weights: Iterable[Any], slots: Iterable[Any]) -> None:
        """Write down the values of variables of Keras, `weights` and `slots`."""
        self.add(record.WEIGHTS, _named(weights))
        self.add(record.SLOTS, _named(slots))

    def before_step(self, model: Any) -> None:
        """Give weights other last digits where that is asked for: it shows what rounding makes of a training."""
        if self.nudge:
            _whole(model)
            random = np.random.default_rng([self.nudge, self.steps])
            for variable in model.trainable_variables:
                value = np.asarray(variable)
                factor = 1 + precision.current().nudge * random.uniform(-1, 1, value.shape)
                variable.assign((value * factor).astype(value.dtype))

    def end_if_enough(self) -> None:
        """End the script after as many steps as are wanted, on every rank after the same one."""
        if self._wanted and self.steps >= self._wanted:
            raise SystemExit(0)


def _of_run() -> Recorder:
    return run_state.part(Recorder)


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.callback_list, or the trainer of a backend."""
    if module.__name__.endswith("callback_list"):
        watch_callbacks(module)
    else:
        watch_model(module, keras_lines.trainer(module))


def watch_callbacks(module: ModuleType) -> None:
    """Record what the `CallbackList` of a module hears."""
    around(module, "CallbackList.on_train_batch_begin", _before_batch)
    for method, after in (
        ("on_train_batch_end", _after_batch),
        ("on_epoch_end", lambda callbacks, logs: _of_run().add(record.EPOCH, _logs(logs))),
        ("on_test_end", lambda callbacks, logs: _of_run().add(record.TEST, _logs(logs))),
    ):
        _after(module, f"CallbackList.{method}", after)


def watch_model(module: ModuleType, owner: str) -> None:
    """Record what `train_on_batch` of a class gives, and know when Keras' own loops are at work; the class is at the
    dotted path `owner` in `module`."""
    for method in ("fit", "evaluate", "predict"):
        around(module, f"{owner}.{method}", _of_keras)
    around(module, f"{owner}.train_on_batch", _train_on_batch)


def _before_batch(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
    _of_run().before_step(callbacks.model)
    return wrapped(*args, **kwargs)


def _after(module: ModuleType, path: str, after: Any) -> None:
    def wrapper(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        after(callbacks, kwargs.get("logs") if "logs" in kwargs else next(iter(args[-1:]), None))
        return result

    around(module, path, wrapper)


def around(module: ModuleType, path: str, wrapper: Any) -> None:
    """Wrap a method that must be there, in a world of one rank too; for the arguments see `wrapping.wrap`.

    Raises:
        NameMoved: it is not there.
    """
    wrapping.require(module, path)
    wrapt.wrap_function_wrapper(module, path, wrapper)


def _of_keras(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    with in_keras():
        return wrapped(*args, **kwargs)


def _train_on_batch(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    _of_run().before_step(model)
    with in_keras():
        result = wrapped(*args, **kwargs)
    _of_run().steps += 1
    several = result if isinstance(result, list) else [result]
    _of_run().add(record.BATCH, _logs(result if isinstance(result, dict) else dict(enumerate(several))))
    _add_model(model)
    _of_run().end_if_enough()
    return result


def _after_batch(callbacks: Any, logs: Any) -> None:
    _of_run().steps += 1
    _of_run().add(record.BATCH, _logs(logs))
    _add_model(callbacks.model)
    _of_run().end_if_enough()


def _logs(logs: Any) -> dict[str, np.ndarray]:
    """Numbers by name, as callbacks see them: those of a metric that has several by their own."""
    found = {str(name): np.asarray(value, np.float64) for name, value in keras_lines.flat(logs or {}).items()}
    found.pop("world_size", None)  # that `--faults shrink` adds
    return found


def _add_model(model: Any) -> None:
    _whole(model)
    held = keras_lines.optimizers_of(model)
    slots = [variable for optimizer in held for variable in keras_lines.optimizer_variables(optimizer)]
    of_metrics = {id(variable) for metric in model.metrics for variable in metric.variables}
    known = of_metrics | {id(variable) for variable in slots}
    _of_run().add_variables([variable for variable in keras_lines.variables(model) if id(variable) not in known], slots)


def _whole(model: Any) -> None:
    """Give variables their whole values: a rank's part of them is nothing to compare."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
    elif world.current().size > 1 and strategies.current().replicas_identical:
        from matex_tf.patches.keras import weights  # imports TensorFlow

        weights.join_state(model)


def _named(variables: Iterable[Any]) -> dict[str, np.ndarray]:
    """Values by path."""
    kept = [variable for variable in variables if not seeds.is_generator_state(variable)]
    return dict(zip(unique(map(keras_lines.path, kept)), map(np.asarray, kept), strict=True))


def unique(names: Iterable[str]) -> list[str]:
    """Names in their order, with a number where one comes again."""
    counted: dict[str, int] = {}
    found = []
    for name in names:
        counted[name] = counted.get(name, -1) + 1
        found.append(f"{name} ({counted[name]})" if counted[name] else name)
    return found


def add_step(names: Sequence[str], values: Sequence[np.ndarray], weights: int) -> None:
    """Record a step of a loop of the script's own.

    Args:
        names: of the values. values: of all weights, then of all slots. weights: how many of them are weights.
    """
    _of_run().steps += 1
    for kind, here in ((record.WEIGHTS, slice(weights)), (record.SLOTS, slice(weights, None))):
        _of_run().add(kind, dict(zip(names[here], values[here], strict=True)))
