"""The first `fit` of a candidate ends at its rung, and the script with it; that of the best one goes on to the end.

A later rung runs the script again, from its top, and its `fit` goes on with the weights and the optimizer's state that
the last rung has left in a file. So nothing is kept of a candidate between rungs but that file.

Relies on (Keras 3.3 to 3.15): `Trainer.fit` and the callbacks by their names, public; and on that model and
optimizer have their variables when callbacks hear of the beginning of training.
"""

from __future__ import annotations

import inspect
import math
import time
from types import ModuleType
from typing import Any

import numpy as np
import wrapt

from matex_tf.core import world
from matex_tf.errors import MatexError, SettingError
from matex_tf.features.blueprints.candidates import candidate
from matex_tf.features.blueprints.candidates.candidate import Candidate
from matex_tf.patches.common import active_flag, keras_lines, wrapping
from matex_tf.storage import atomic_file

#: Callbacks that write files, which candidates side by side would write over one another's.
_WRITE = ("ModelCheckpoint", "BackupAndRestore", "CSVLogger", "TensorBoard", "RemoteMonitor", "OrbaxCheckpoint")
#: Scores by parts of their names: whether more of it is better.
_DIRECTIONS = {
    "loss": False, "error": False, "crossentropy": False, "divergence": False, "poisson": False, "hinge": False,
    "logcosh": False, "acc": True, "auc": True, "precision": True, "recall": True, "f1": True, "fbeta": True,
    "iou": True, "r2": True, "similarity": True, "true_": True, "false_": False,
}  # fmt: skip


class RungReached(BaseException):
    """The candidate has come to the end of its rung: the script runs no further. Not an Exception, so that no handler
    of the script's takes it for an error."""


def install(module: ModuleType) -> None:
    """Patch keras.src.backend.tensorflow.trainer."""
    path = f"{keras_lines.trainer(module)}.fit"
    wrapping.require(module, path)
    wrapt.wrap_function_wrapper(module, path, _fit)


def more_is_better(name: str) -> bool | None:
    """Whether a score is better where it is larger; None where its name does not say."""
    plain = name.removeprefix("val_").lower()
    return next((better for part, better in _DIRECTIONS.items() if part in plain), None)


def choose_objective(names: list[str]) -> str:
    """The score that candidates are compared by, where none is given: a metric on held-out rows, else their loss.

    Raises:
        SettingError: nothing is measured on held-out rows.
    """
    held_out = [name for name in names if name.startswith("val_")]
    if not held_out:
        raise SettingError(
            f"candidates are compared by what fit measures on held-out rows, and there is only {', '.join(names)}: "
            "give fit validation_data or validation_split, or name one of these by --objective."
        )
    return next((name for name in held_out if name != "val_loss" and more_is_better(name) is not None), "val_loss")


def _fit(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    now = candidate.current()
    if now is None:
        return wrapped(*args, **kwargs)
    if names := [name for name in candidate.unasked() if not name.startswith("_")]:
        raise SettingError(
            f"nothing in the script has taken {', '.join(names)} of the blueprint. A name such as dense_1.units is for "
            f"the layer dense_1, and here are {', '.join(layer.name for layer in model.layers)}; other names are for "
            "matex_tf.Blueprint(...).values in the script."
        )
    given = inspect.signature(wrapped).bind(*args, **kwargs)
    given.apply_defaults()
    arguments = given.arguments
    whole, first = int(arguments["epochs"]), int(arguments["initial_epoch"])
    end = whole if now.is_last else first + max(1, math.ceil((whole - first) * now.part))
    begin = first + now.done
    follower = _follower(now)
    keras_lines.build_before_fit(model, arguments["x"])
    arguments["epochs"], arguments["initial_epoch"] = end, begin
    arguments["callbacks"] = _with(arguments["callbacks"], follower, now)
    if not now.is_last:
        arguments["verbose"] = 0
    began = time.perf_counter()
    history = wrapped(*given.args, **given.kwargs)
    rows = _rows(arguments["x"], history.params) * len(history.epoch)
    found = {
        **_scores(history.history, now),
        "whole": whole - first,
        "done": end - first,
        "rows": rows,
        "seconds": time.perf_counter() - began,
        "values": now.values,
        "parameters": int(sum(np.prod(variable.shape) for variable in model.trainable_variables)),
    }
    if world.current().rank == 0:
        with active_flag.alone():
            if now.keep:
                variables = [np.asarray(one) for one in _variables(model)]
                atomic_file.put(now.keep, lambda path: _write_arrays(path, variables))
            atomic_file.put_json(now.result, found)
    candidate.use(None)  # a later fit of the script is its own business
    if not now.is_last:
        raise RungReached
    return history


def _scores(history: dict[str, list[float]], now: Candidate) -> dict[str, Any]:
    """The name of the score, whether more is better, and its best value."""
    if not history:
        return {"objective": now.objective, "score": None}
    name = now.objective or choose_objective(list(history))
    if name not in history:
        raise SettingError(f"--objective is {name}, which fit does not measure: it has {', '.join(history)}.")
    more = more_is_better(name)
    values = [float(value) for value in history[name] if math.isfinite(float(value))]
    best = (max(values) if more else min(values)) if values else None
    return {"objective": name, "more": bool(more), "score": best, "values by epoch": history[name]}


def _variables(model: Any) -> list[Any]:
    return [*model.variables, *getattr(model.optimizer, "variables", [])]


def _write_arrays(path: str, arrays: list[np.ndarray]) -> None:
    with open(path, "wb") as file:
        np.savez(file, *arrays)


def _with(callbacks: Any, follower: Any, now: Candidate) -> list[Any]:
    """The script's callbacks, without those that write where it is one of several, and ours."""
    given = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks is not None else []
    if callbacks is not None and hasattr(callbacks, "callbacks"):  # a CallbackList
        given = callbacks.callbacks
    kept = [one for one in given if now.is_last or not any(kind.__name__ in _WRITE for kind in type(one).__mro__)]
    return [follower, *kept]


def _follower(now: Candidate) -> Any:
    import keras

    class GoOn(keras.callbacks.Callback):
        """Gives the model what it had after the last rung, when all its variables are there."""

        def on_train_begin(self, logs: Any = None) -> None:
            if not now.state:
                return
            with np.load(now.state) as kept:
                arrays = [kept[name] for name in kept.files]
            if not self.model.optimizer.built:
                self.model.optimizer.build(self.model.trainable_variables)
            variables = _variables(self.model)
            shapes = [tuple(one.shape) for one in variables]
            if shapes != [one.shape for one in arrays]:
                raise MatexError(
                    f"candidate {now.number} is another network than in the rung before: the script must make the same "
                    "network from the same values each time that it is run."
                )
            for variable, array in zip(variables, arrays, strict=True):
                variable.assign(array)

    return GoOn()


def _rows(x: Any, params: dict[str, Any]) -> int:
    """Rows of an epoch: those of arrays, else its batches, which are all that is known."""
    one = x
    while isinstance(one, (list, tuple, dict)) and one:
        one = next(iter(one.values())) if isinstance(one, dict) else one[0]
    shape = getattr(one, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) and shape[0] is not None else int(params.get("steps") or 0)


def begin(seed: int) -> None:
    """As at the start of a process: the same seeds, and the names of layers from the first."""
    import keras

    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)


def failed(now: Candidate, why: str) -> None:
    """Write down that a candidate came to no score; rank 0 does.

    Args:
        now: the candidate; nothing is written where it has no file for that.
        why: in words.
    """
    if now.result and world.current().rank == 0:
        with active_flag.alone():
            atomic_file.put_json(now.result, {"failed": why, "values": now.values})
