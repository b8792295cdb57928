"""`--faults restart`: a script that runs from its top again goes on where the job before it was; see docs/faults.md.

A `fit` is known by its place among the calls of `fit`. One that was complete is not trained again: its model,
callbacks and History get what they had at its end. One that was under way runs Keras' own loop, in which batches that
were used already are drawn and left alone, callbacks not called, until the loop has come to the step of the checkpoint.

Relies on (Keras 3.3 to 3.15, tf_keras 2.16 to 2.21): methods of `CallbackList` and its `callbacks` (public),
`CSVLogger.csv_file` (private); and on Keras 3's `Trainer._initial_epoch` (private).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from matex_tf import settings
from matex_tf.core import world
from matex_tf.core.slots import Checkpoints
from matex_tf.errors import EndsToResume, MatexError, Refused
from matex_tf.faults.place import Place
from matex_tf.patches.common import log_once, model_state, wrapping
from matex_tf.patches.recovery import snapshot
from matex_tf.patches.recovery.checkpoint_timer import Clock, Due
from matex_tf.patches.steps.step_part import StepPart, StepRun
from matex_tf.state import run_state


class Complete(Exception):
    """The model has what it had at the end of this `fit`: nothing is left to be trained."""


class Fit:
    """The `fit` that is under way, the outermost of a script.

    Attributes:
        model: what it trains.
        replaying: whether the loop has not yet come to where the checkpoint was taken.
    """

    def __init__(self, fits: Fits, model: Any, store: Checkpoints, place: Place | None, kept: dict[str, Any] | None):
        """A call of `fit`.

        Args:
            fits: the calls until now, with this one.
            store: the checkpoints of the job.
            place: where its checkpoint was taken; None where there is none.
            kept: the checkpoint.
        """
        self.number = fits.count
        self.model = model
        self._fits = fits
        self._store = store
        self.replaying = place is not None
        self._place, self._kept = place, kept
        self._callbacks: list[Any] = []
        self._epoch = self._step = -1
        self._first = True
        self._quick = self._python_draws = self._generator_made = False

    def is_of(self, counted: bool, begin_anew: bool) -> None:
        """Take note of the data that it trains on.

        Args:
            counted: whether their batches can be counted beforehand, as no Python code makes them.
            begin_anew: whether the first batch of an epoch draws all random numbers that the epoch does.
        """
        self._quick = begin_anew  # of epochs that were complete one batch is drawn
        self._python_draws = counted  # or the code of the data draws them anew

    def choice_in(self, epoch: int) -> Any:
        """What the checkpoint has of the choice of rows, if this is the epoch that it was taken in."""
        if not self.replaying or self._kept is None or self._of().done or epoch != self._of().epoch:
            return None
        return self._kept.get("row choice")

    def begin(self, callbacks: Any, call: Callable[[], Any]) -> Any:
        """The callbacks are about to hear of the beginning of training.

        Args:
            callbacks: Keras' `CallbackList`. call: tells them, which is left out in a `fit` that was over.
        """
        self._callbacks = callbacks.callbacks
        if not self.replaying:
            return call()
        assert self._place is not None and self._kept is not None
        if self._place.done:
            return None
        initial = getattr(self.model, "_initial_epoch", None)
        with _logs_go_on(self._callbacks, self._kept["logs"]):
            result = call()
        if initial is not None:  # Keras 2 has it elsewhere, which a feature serves
            self.model._initial_epoch = initial  # not where BackupAndRestore would begin
        return result

    def begin_epoch(self, epoch: int, call: Callable[[], Any]) -> Any:
        self._epoch = epoch
        return None if self.replaying and self._before_epoch() else call()

    def end_epoch(self, call: Callable[[], Any]) -> Any:
        if not self.replaying:
            return call()
        if not self._before_epoch():
            raise self._differs(f"epoch {self._epoch + 1} has no step {self._of().step + 1}")
        return None

    def begin_step(self, step: int, call: Callable[[], Any]) -> Any:
        self._step = step
        return None if self.replaying and self._before() else call()

    def end_step(self, call: Callable[[], Any]) -> Any:
        return None if self.replaying else call()

    def _of(self) -> Place:
        assert self._place is not None
        return self._place

    def _before_epoch(self) -> bool:
        return self._of().done or self._epoch < self._of().epoch

    def _before(self) -> bool:
        return self._of().done or (self._epoch, self._step) < (self._of().epoch, self._of().step)

    def passes_over(self, draw: Callable[[], bool]) -> bool:
        """Whether the step that is about to begin was done already; its batches are drawn then.

        Args:
            draw: fetches the batches of a step; whether there were any.

        Raises:
            StopIteration: there are none left.
        """
        if not self.replaying:
            due = Due.NOTHING if self._first else self._fits.clock.due(self._step == 0, self._store)
            if due is not Due.NOTHING:
                place = Place(self.number, self._epoch, self._step)
                self._save(place, last=due is Due.SAVE_AND_END)
                if due is Due.SAVE_AND_END:
                    by = signal.SIGTERM if self._store.told_to_end else signal.SIGUSR1
                    raise EndsToResume(str(place), by)
            self._first = False
            return False
        if self._of().done or not self._before():
            return False  # and `restore` comes next
        needless = self._quick and self._before_epoch() and self._step > 0
        if not needless and not draw():
            raise StopIteration
        if self._kept is not None and not self._generator_made:
            # As in the step that was traced first: its seed is a number of Python's, as those of the data may be.
            snapshot.make_generator(self._kept)
            self._generator_made = True
        return True

    def restore(self, last: bool) -> bool:
        """Give the model what it had; whether that is done.

        Args:
            last: whether the model has all variables that it will have.

        Raises:
            Complete: this `fit` had come to its end.
            MatexError: it is another model.
        """
        assert self._kept is not None
        difference = snapshot.fits(self.model, self._kept)
        if difference and not last:
            return False
        if difference:
            raise self._differs(f"{self.model.name} is another model: {difference}")
        snapshot.give_back(self.model, self._callbacks, self._kept)
        self.replaying = self._first = False
        self._kept = None
        if self._of().done:
            raise Complete
        self._fits.say_once(f"training continues at {self._of()}")
        self._fits.clock.saved()
        return True

    def _differs(self, what: str) -> MatexError:
        return MatexError(
            f"fit {self.number} is not what it was in the run that wrote the checkpoint: {what}. A script must do the "
            f"same when it is run again; to begin again, leave out --resume or remove {self._store.path}."
        )

    def end(self) -> None:
        """It has come to its end, in this run."""
        if not self.replaying:
            self._save(Place(self.number))
        elif not self._of().done:  # a fit of no epochs is complete without a step
            raise self._differs(f"it ends before {self._of()}")

    def _save(self, place: Place, last: bool = False) -> None:
        """Args: last: whether the job ends once it is written."""
        if last:
            self._store.finish()  # what is being written
        taken = snapshot.take(self.model, self._callbacks, self._python_draws or place.done)
        chosen = model_state.of(self.model).row_choice
        of_rows = None if chosen is None or place.done else chosen.state()
        if taken is not None:
            taken["row choice"] = of_rows
            taken["per_rank"] = settings.current().batch == "per-rank"
            taken["logs"] = _log_sizes(self._callbacks)
            self._store.save(place, lambda: snapshot.settled(taken))
        self._fits.clock.saved()
        if last:
            self._store.finish()
            world.current().barrier("write the last checkpoint")


class Fits:
    """The calls of `fit` of a script.

    Attributes:
        count: how many there have been.
        under_way: the one that is, if it has checkpoints of its own.
        clock: says when a checkpoint is due.
        replayed: whether this rank has run a loop of the script's own without computing its steps.
    """

    def __init__(self) -> None:
        self.count, self.replayed = 0, False
        self.under_way: Fit | None = None
        self.clock = Clock()
        self._said = False

    def say_once(self, how: str) -> None:
        """Say where training goes on, once."""
        if not self._said:
            died = os.environ.get("MATEX_DIED", "")
            log_once.log(how + (f", {time.time() - float(died):.1f} s after the death" if died else ""))
        self._said = True


def fits() -> Fits:
    """The calls of `fit` of the script that this process runs."""
    return run_state.current().part(Fits)


def install(module: ModuleType) -> None:
    """Patch keras.src.callbacks.callback_list or tf_keras.src.callbacks, where batches may have to be passed over."""
    if settings.current().faults == "abort" and not settings.current().is_guest:
        return
    if run_state.current().prepared is None:
        fits()  # whose clock runs from here
    for method, hook in (
        ("on_train_begin", lambda this, callbacks, args, call: this.begin(callbacks, call)),
        ("on_epoch_begin", lambda this, callbacks, args, call: this.begin_epoch(args[0], call)),
        ("on_epoch_end", lambda this, callbacks, args, call: this.end_epoch(call)),
        ("on_train_batch_begin", lambda this, callbacks, args, call: this.begin_step(args[0], call)),
        ("on_train_batch_end", lambda this, callbacks, args, call: this.end_step(call)),
    ):
        wrapping.wrap(module, f"CallbackList.{method}", _hooked(hook))


def _hooked(hook: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(wrapped: Any, callbacks: Any, args: Any, kwargs: Any) -> Any:
        this = under_way(callbacks.model)
        if this is None:
            return wrapped(*args, **kwargs)
        return hook(this, callbacks, args, lambda: wrapped(*args, **kwargs))

    return wrapper


def under_way(model: Any) -> Fit | None:
    """The `fit` that trains this model; None where none does, or where the job is not started again."""
    this = fits().under_way
    return this if this is not None and this.model is model else None


class Replay(StepPart):
    """A `fit` of a job that is started again takes its state where the checkpoint was taken."""

    def before(self, run: StepRun) -> None:
        this = under_way(self.model) if run.first else None
        if this is not None and this.replaying and this.restore(last=not self.model.run_eagerly):
            this = None
        run.resumes = this is not None

    def after(self, run: StepRun) -> bool:
        this = under_way(self.model) if run.resumes else None
        if this is None or not this.replaying:
            return False
        this.restore(last=True)  # with what an optimizer has made in a first, eager step
        return True


def choice_in(model: Any, epoch: int) -> tuple[bool, Any]:
    """Whether a `model` is on its way to where it was; and the choice of rows of a checkpoint in this `epoch`, counted
    from 0."""
    this = under_way(model)
    return (False, None) if this is None else (this.replaying, this.choice_in(epoch))


def replaying(model: Any) -> bool:
    """Whether this model is on its way to where it was."""
    this = under_way(model)
    return this is not None and this.replaying


def fit(model: Any, run: Callable[[], Any]) -> Any:
    """Run a `fit`, from where it was.

    Args:
        model: of Keras. run: calls Keras' own; returns the History.

    Raises:
        MatexError: the script does not do what it did in the run that wrote the checkpoint.
    """
    if world.current().arrival is not None:
        raise Refused("ranks come to a fit of Keras 3 with TensorFlow, and to no other one")
    store, known = world.current().checkpoints, fits()
    if store is None or known.under_way is not None:
        return run()
    known.count += 1
    this = known.under_way = Fit(known, model, store, *_find(known, store))
    before = getattr(model, "_initial_epoch", None)
    try:
        with store.heeding_the_end():
            history = run()
            this.end()
    except Complete:
        if before is not None:
            model._initial_epoch = before
        history = model.history
    finally:
        known.under_way = None
    return history


def _find(fits: Fits, store: Checkpoints) -> tuple[Place | None, dict[str, Any] | None]:
    """The checkpoint of the last of these fits, the same on every rank but for the values of variables."""
    ranks, number = world.current(), fits.count
    if not store.resumed:
        return None, None
    found = store.find(number) if ranks.rank == 0 else None
    if found is not None and found[1]["per_rank"] and found[1]["ranks"] != ranks.size and not found[0].done:
        log_once.log(f"fit {number} begins again: with --batch per-rank it continues only on as many ranks as before")
        found = None
    values = found[1].pop("values") if found else None
    place, kept = ranks.broadcast(found or (None, None), "go on from a checkpoint")
    if place is None:
        fits.say_once(f"there is no checkpoint of fit {number}, which begins again")
        return None, None
    if place.done:
        log_once.log(f"fit {number} was complete, and is not trained again")
    return place, {**kept, "values": values}


def _log_sizes(callbacks: list[Any]) -> dict[int, int]:
    """How much each CSVLogger has written."""
    sizes = {}
    for place, callback in enumerate(callbacks):
        file = getattr(callback, "csv_file", None)
        if file is not None and not getattr(file, "closed", False):  # Keras 2 has a GFile, until it has none
            file.flush()
            sizes[place] = file.tell()
    return sizes


@contextlib.contextmanager
def _logs_go_on(callbacks: list[Any], sizes: dict[int, int]) -> Any:
    """Inside, a CSVLogger opens its file to go on after what was written before the checkpoint."""
    before = {}
    for place, size in sizes.items():
        callback = callbacks[place] if place < len(callbacks) else None
        if callback is None or not hasattr(callback, "filename"):
            continue
        before[place] = callback.append
        callback.append = True
        if world.current().rank == 0:
            with contextlib.suppress(OSError):
                os.truncate(callback.filename, size)
    try:
        yield
    finally:
        for place, append in before.items():
            callbacks[place].append = append
