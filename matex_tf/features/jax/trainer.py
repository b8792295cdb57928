"""`fit`, `evaluate`, `predict` and their `_on_batch` kin of Keras on JAX: compiled steps are those of all ranks.

Relies on (Keras 3.12 to 3.16), private but for the calls: `jit` of keras.src.backend.jax.trainer, which compiles steps
with `donate_argnums`, and `JAXTrainer.jax_state_sync`, `_jax_state`; `JAXEpochIterator._get_iterator` and its
`data_adapter.get_jax_iterator`; `EpochIterator.__init__`.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from matex_tf import settings
from matex_tf.core import trace, world
from matex_tf.errors import MatexError
from matex_tf.features.jax import distribution, step, team
from matex_tf.patches.common import model_state, sharing_report, under_way, wrapping
from matex_tf.patches.fit import asked
from matex_tf.patches.steps import counting
from matex_tf.readers import of_all_ranks, own_rows

_EAGER = (
    "steps of Keras on JAX that are not compiled",
    "leave out run_eagerly=True and jit_compile=False (docs/jax.md)",
)
_KINDS = ("train", "test", "predict")
_STATE = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


def install(module: ModuleType) -> None:
    """Patch keras.src.backend.jax.trainer, if JAX knows of all ranks."""
    if wrapping.is_aside() or wrapping.alone() or not team.join():
        return
    if not hasattr(module, "jit"):
        raise MatexError(
            f"Keras {wrapping.keras_version()} compiles steps for JAX in another way than Keras 3.12 to 3.16, which "
            "matex_tf knows: pip install 'keras>=3.12,<3.17', or set KERAS_BACKEND=tensorflow (docs/jax.md)."
        )
    distribution.begin()
    wrapping.wrap(module, "jit", _jit)
    wrapping.wrap(module, "JAXTrainer._get_state_sharding_spec", distribution.layouts)
    for kind in _KINDS:
        wrapping.wrap(module, f"JAXTrainer.make_{kind}_function", _making(kind))
    wrapping.wrap(module, "JAXTrainer.fit", _fit)
    for name in ("evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"):
        wrapping.wrap(module, f"JAXTrainer.{name}", _calling(name))
    wrapping.wrap(module, "JAXTrainer.jax_state_sync", _sync)
    wrapping.wrap(module, "JAXEpochIterator.__init__", _apart)
    wrapping.wrap(module, "JAXEpochIterator._get_iterator", _batches)


class StepFunction:
    """What Keras calls as `train_function`, `test_function` and `predict_function`."""

    def __init__(self, model: Any, kind: str, function: Any):
        self._model, self._kind, self._function = model, kind, function
        self._compiled = not model.run_eagerly and model.jit_compile
        self._count = 0

    def __call__(self, state: Any, batches: Iterator[Any]) -> Any:
        import jax

        notes, training = model_state.of(self._model), self._kind == "train"
        self._count += 1
        where = f"{self._kind} step {self._count} of {self._model.name}"
        shown = f"{where}, {trace.BY_XLA}" if self._compiled else where
        with world.current().during(where), trace.span("step", shown):
            if notes.begin:
                state, notes.begin = step.alike(state), False
            result, state = self._function(state, batches)
            if settings.current().trace:
                jax.block_until_ready((result, state))
        if self._compiled:
            sharing_report.shared(training)
        elif training:
            sharing_report.trained("jax_eager", _EAGER)
        if training and counting.count():
            self._model._jax_state = dict(zip(_STATE, state, strict=True))  # what it has was given away to the step
            self._model.jax_state_sync()
            counting.end()
        return result, state


def _jit(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Of what Keras compiles, steps are given a state that they need not keep."""
    if "donate_argnums" not in kwargs:
        return wrapped(*args, **kwargs)
    layouts = kwargs.get("out_shardings")
    return step.CompiledStep(args[0], distribution.place(), layouts and layouts[1])


def _making(kind: str) -> Any:
    name = f"{kind}_function"

    def wrapper(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
        before = getattr(model, name)
        result = wrapped(*args, **kwargs)
        if (made := getattr(model, name)) is not before:
            setattr(model, name, StepFunction(model, kind, made))
        return result

    return wrapper


def _fit(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    ranks = world.current()
    ranks.at(f"the start of fit of {model.name}")
    asked.compare(wrapped, args, kwargs)
    model_state.of(model).begin = True
    history = wrapped(*_whole(args), **_whole(kwargs))
    ranks.at(f"the end of fit of {model.name}")
    ranks.barrier("end a fit")
    return history


def _calling(name: str) -> Any:
    def wrapper(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
        world.current().at(f"{name} of {model.name}")
        return wrapped(*_whole(args), **_whole(kwargs))

    return wrapper


def _whole(given: Any) -> Any:
    """Arguments with the rows of all ranks in place of arrays of a `DataSet`, which have this rank's."""
    if isinstance(given, own_rows.OwnRows):
        return of_all_ranks.whole(given, "gather the rows of a DataSet")
    if type(given) in (tuple, list):
        return type(given)(map(_whole, given))
    return {key: _whole(value) for key, value in given.items()} if type(given) is dict else given


def _sync(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """Variables get arrays of this rank's own."""
    if state := getattr(model, "_jax_state", None):
        kinds = {kind: list(arrays) for kind, arrays in state.items()}  # JAX does not look into Keras' tracked lists
        model._jax_state = team.current().own(kinds)
    return wrapped(*args, **kwargs)


def _apart(wrapped: Any, iterator: Any, args: Any, kwargs: Any) -> Any:
    with under_way.apart():
        return wrapped(*args, **kwargs)


def _batches(wrapped: Any, iterator: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """The batches of one rank, each whole."""
    with under_way.apart():
        batches = iter(iterator.data_adapter.get_jax_iterator())
    return _each(batches)


def _each(batches: Iterator[Any]) -> Iterator[Any]:
    nothing = object()
    while True:
        with under_way.apart():
            batch = next(batches, nothing)
        if batch is nothing:
            return
        yield batch
