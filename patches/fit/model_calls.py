"""`fit`, `evaluate` and `predict` of a model, in which the ranks take part together: what Keras 2 and 3 have in common.

A Keras derives `ModelCalls` for what is its own, and its methods are wrapped by those of an instance.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from typing import Any

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.patches.common import keras_lines, model_state, sharing_report, under_way, wrapping
from matex_tf.patches.common.active_flag import ActiveFlag
from matex_tf.patches.fit import asked, falling_behind
from matex_tf.patches.keras import metrics, weights
from matex_tf.patches.recovery import resume_fit
from matex_tf.patches.sources import batch_ownership as guesses
from matex_tf.patches.sources import source_sharding

#: While `evaluate` runs, also that of a validation, or of a callback in the middle of an epoch.
evaluating = ActiveFlag("evaluating")


class ModelCalls(abc.ABC):
    """Wrappers of the methods of a Keras model: those for a method have the arguments that `wrapping.wrap` says.

    Attributes:
        step_function: the class of what Keras calls as `train_function` and `test_function`: has a `feed` of batches.
        predict_function: the class of `predict_function`.
    """

    step_function: Any
    predict_function: Any

    @abc.abstractmethod
    def within(self) -> contextlib.AbstractContextManager[Any]:
        """Keras' own loop runs in this context."""

    @abc.abstractmethod
    def executing(self, model: Any, times: int) -> contextlib.AbstractContextManager[Any]:
        """In this context an execution of a `model` has so many `times` as many batches of the script's size."""

    def predicting(self, model: Any, x: Any) -> contextlib.AbstractContextManager[Any]:
        """`predict` of a `model` for the data `x` runs in this context, with weights that are merged."""
        return contextlib.nullcontext()

    def recovering(self, model: Any, fit: Callable[[], Any]) -> Any:
        """Call `fit`, without arguments, so that the training of the `model` can be taken up again; returns what it
        does."""
        return resume_fit.fit(model, fit)

    @abc.abstractmethod
    def before_fit(self, model: Any, x: Any) -> None:
        """All ranks begin a `fit` of a `model` with the data `x`."""

    def wrappers(self, logs: str) -> dict[str, Callable[..., Any]]:
        """What wraps each method. Args: logs: the method that reads an epoch's logs."""
        made = {f"make_{kind}_function": self.making(kind) for kind in ("train", "test", "predict")}
        named = {name: getattr(self, name) for name in ("fit", "evaluate", "predict", "reset_metrics")}
        return {**made, **named, logs: self.logs_of_all}

    def making(self, kind: str) -> Callable[..., Any]:
        """The wrapper of `make_train_function` and the like. Args: kind: "train", "test" or "predict"."""

        def make(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
            held = getattr(model, f"{kind}_function")
            if held is None or wrapping.taken(args, kwargs, force=False)[0]:
                if kind == "train":
                    model_state.of(model).begin = True
                held = self.predict_function(model) if kind == "predict" else self.step_function(model, kind)
                setattr(model, f"{kind}_function", held)
            return held

        return make

    def fit(self, wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
        """Wraps `fit`: see `wrapping.wrap`."""
        sharing_report.shared()  # also one that was complete before the job was started again
        return self.recovering(model, lambda: self._fit_together(wrapped, model, args, kwargs))

    def _fit_together(self, wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
        ranks, notes = world.current(), model_state.of(model)
        notes.begin, notes.epoch_losses = True, []
        ranks.at(f"the start of fit of {model.name}")
        asked.compare(wrapped, args, kwargs)
        notes.epochs = asked.epochs(wrapped, args, kwargs)
        self.before_fit(model, args[0] if args else kwargs.get("x"))
        if isinstance(model.train_function, self.step_function):
            model.train_function.feed.begin_fit()
        if settings.current().batch == "per-rank":
            notes.batches_in_step = ranks.size
        more = self.executing(model, notes.batches_in_step)
        try:
            with self.within(), more, under_way.making_epochs("fit", model):
                history = wrapped(*args, **kwargs)
        finally:
            notes.batches_in_step = 1
        if isinstance(model.train_function, self.step_function):
            model.train_function.feed.end_fit()
        if not strategies.current().replicas_identical:
            optimizers = keras_lines.optimizers_of(model)
            # Keras has put each rank's own moving averages in the place of its weights.
            notes.unmerged = notes.unmerged or any(getattr(one, "use_ema", False) for one in optimizers)
        weights.merge_statistics(model)
        strategies.current().end(model)
        if not strategies.current().replicas_identical:  # `train_on_batch` begins another training to meet anybody
            notes.begin = True
        ranks.at(f"the end of fit of {model.name}")
        ranks.end_together("end a fit")
        return history

    def evaluate(self, wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
        """Wraps `evaluate`: see `wrapping.wrap`."""
        if resume_fit.replaying(model):
            return {}  # validation after an epoch that is over
        world.current().at(f"evaluate of {model.name}")
        weights.merge_statistics(model)
        with self.within(), evaluating():
            return wrapped(*args, **kwargs)

    def predict(self, wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
        """Wraps `predict`: see `wrapping.wrap`.

        Raises:
            MatexError: rows that the source has dealt out.
        """
        world.current().at(f"predict of {model.name}")
        x = args[0] if args else kwargs.get("x")
        if source_sharding.found(x) == "source":
            raise MatexError(
                "predict gives predictions in the order of the rows, and --data source has dealt those out: give it "
                "arrays, or take --data exact."
            )
        weights.merge_statistics(model)
        notes = model_state.of(model)
        notes.predicts, notes.finding = guesses.UNKNOWN, None
        try:
            with self.predicting(model, x), self.within(), under_way.making_epochs("predict", model):
                return wrapped(*args, **kwargs)
        finally:
            notes.predicts = notes.finding = None

    def logs_of_all(self, wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
        """Wraps what reads an epoch's logs (see `wrapping.wrap`): over all ranks. Moving statistics are merged too,
        before validation. A strategy whose loss grows is named."""
        if resume_fit.replaying(model):
            return {}
        world.current().at(f"the end of an epoch of {model.name}")
        if isinstance(model.train_function, self.step_function):
            model.train_function.end_epoch(bool(evaluating))
        weights.merge_statistics(model)
        averaged = metrics.merge(model)
        own = args[0] if args else kwargs["logs"]
        logs = wrapped(own)
        if logs is own and isinstance(logs, dict):
            logs = metrics.complete(model, logs, averaged)
        elif isinstance(logs, dict):
            logs = {**logs, **averaged}
        if logs and not evaluating:
            falling_behind.look(model, logs)
        return logs

    def reset_metrics(self, wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
        """Wraps `reset_metrics`, with which an epoch begins: see `wrapping.wrap`.

        Raises:
            MatexError: the model makes a train_function or test_function of its own.
        """
        metrics.forget(model)
        for name in ("train", "test"):
            function = getattr(model, f"{name}_function")
            if function is not None and not isinstance(function, self.step_function):
                raise MatexError(
                    f"{model.name} ({type(model).__name__}) makes a {name}_function of its own, which cannot be split "
                    f"among ranks: give it a {name}_step, in place of make_{name}_function."
                )
        if isinstance(model.train_function, self.step_function):
            model.train_function.begin_epoch()
        return wrapped(*args, **kwargs)
