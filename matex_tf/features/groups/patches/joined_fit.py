"""`matex-tf join`: a script whose group takes part in the training of a job that runs already.

A `fit` that is over in the job is left out. In the one that is under way the batches of the epochs that are over are
drawn, so that those to come are the same, and left alone, with no callback called; then the group takes parts of
batches as groups of the job do. At the end of that `fit` the script ends.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.faults.place import Place
from matex_tf.features.groups import apart
from matex_tf.features.groups.center.joining import JobGone, Visit
from matex_tf.patches.common import keras_lines, log_once, wrapping
from matex_tf.patches.fit import model_calls
from matex_tf.patches.recovery import resume_fit


class JoinedFit(resume_fit.Fit):
    """The `fit` of the job that is under way, in a group that joins it."""

    def __init__(self, fits: resume_fit.Fits, model: Any, visit: Visit):
        no_store: Any = None  # nothing here saves a checkpoint
        super().__init__(fits, model, no_store, Place(fits.count, 0, 0), {"logs": {}})
        self._visit = visit
        self._generator_made = True  # random numbers are drawn as in a job that was not interrupted

    def begin(self, callbacks: Any, call: Callable[[], Any]) -> Any:
        first = getattr(self.model, "_initial_epoch", 0) or 0
        self._place = Place(self.number, first + self._visit.epoch - 1, 0)
        log_once.log(
            f"this group joins the training of the job, which is in epoch {self._place.epoch + 1} of fit {self.number}"
        )
        return super().begin(callbacks, call)

    def passes_over(self, draw: Callable[[], bool]) -> bool:
        if self.replaying and not self._before():
            self.replaying = False
        return super().passes_over(draw) if self.replaying else False

    def _differs(self, what: str) -> MatexError:
        return MatexError(f"fit {self.number} is not what it is in the job that was joined: {what}.")

    def end_epoch(self, call: Callable[[], Any]) -> Any:
        result = super().end_epoch(call)
        if not self.replaying:  # whether to go on is for the job to say
            try:
                self.model.stop_training = not apart.current().goes_on(self.model)
            except JobGone:
                self.model.stop_training = True
        return result


def install(module: ModuleType) -> None:
    """Patch keras.src.backend.tensorflow.trainer."""
    if not settings.current().is_guest:
        return
    wrapping.wrap(module, f"{keras_lines.trainer(module)}.fit", _fit)
    wrapping.wrap(module, f"{keras_lines.trainer(module)}._get_metrics_result_or_logs", _logs)


def _fit(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    return fit(model, lambda: wrapped(*args, **kwargs))


def _logs(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    steps = model.train_function.apart
    if not model_calls.evaluating and (steps is None or steps.made_no_step):
        return {}  # metrics know nothing yet
    return wrapped(*args, **kwargs)


def fit(model: Any, run: Callable[[], Any]) -> Any:
    """Run a `fit` of the script, where the job is in it.

    Args:
        run: calls Keras' own; returns the History.

    Raises:
        MatexError: the job cannot be joined here.
        SystemExit: the training has ended.
    """
    known, visit = resume_fit.fits(), world.current().center
    if known.under_way is not None or not isinstance(visit, Visit):
        return run()
    if not strategies.current().deals_parts:
        raise MatexError(f"--strategy {strategies.current().name} has no center, so no group can join its training.")
    known.count += 1
    while True:
        answer, _ = visit.ask("where", training=visit.trainings + 1)
        if answer["over"] or answer["training"] == visit.trainings + 1:
            break
    if answer["over"]:
        visit.trainings += 1
        log_once.log(f"the job has completed fit {known.count}, and this group leaves it out")
        return _nothing(model)
    visit.epoch = answer["epoch"]
    known.under_way = JoinedFit(known, model, visit)
    try:
        run()
        log_once.log("the training of the job has ended, and so does this group")
    except MatexError as error:
        if not (isinstance(error, JobGone) or visit.is_gone):
            raise
        log_once.log("the job has ended, or cannot be reached any more, and so does this group")
    finally:
        known.under_way = None
    raise SystemExit(0)


def _nothing(model: Any) -> Any:
    """The History of a `fit` of no epochs."""
    from keras.callbacks import History

    history = History()
    history.set_model(model)
    history.on_train_begin()
    model.history = history
    return history
