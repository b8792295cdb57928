"""A `fit` to which ranks can come (`matex-tf join`), on the ranks of the job and on those that come.

A rank that comes runs Keras' own loop alone. It makes its first step, so that its graph is traced, and what that has
changed does not count. Then it draws the batches that the job has used, and leaves them, as a job does that is started
again (`resume_fit`). Where the job is meanwhile it takes what a checkpoint would hold, and goes on as one of the ranks.

A loop of the script's own it runs alone, where the job is in a `fit` after that loop. If the job is in the loop itself,
see `growing_loop`.

Relies on (Keras 3.3 to 3.15): `BaseOptimizer.apply` (public), `Trainer._eval_epoch_iterator` (private).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.core.slots import Checkpoints
from matex_tf.errors import MatexError, Refused
from matex_tf.faults.place import Place
from matex_tf.patches.common import active_flag, keras_lines, model_state, under_way, wrapping
from matex_tf.patches.recovery import resume_fit, snapshot, step_retry
from matex_tf.patches.recovery.checkpoint_timer import Clock, Due
from matex_tf.patches.shards.serving import Parts
from matex_tf.state import run_state
from matex_tf.storage import plain_encoder

#: Seconds between two questions whether a rank has come, about.
_SECONDS = 0.5
#: Seconds of drawing batches after which a rank that comes asks once more where the job is.
_CLOSE = 1.0


def install(module: ModuleType) -> None:
    """Patch keras.src.optimizers.base_optimizer."""
    wrapping.method(module, "BaseOptimizer.apply", _apply, in_steps=True)


def _apply(wrapped: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
    """A rank that comes trains outside of `fit`: only to come to one that the job is in."""
    arrival, known = world.of_job().arrival, resume_fit.fits()
    if under_way.now().one_rank is not None:  # of a compiled step, see `growing_loop`
        return wrapped(*args, **kwargs)
    if arrival is not None and known.under_way is None and not arrival.has_begun(known.count + 1):
        arrival.refuse(
            f"its script trains in a loop of its own, and the job has not come to a fit after that one (fit "
            f"{known.count + 1}): ranks come to a fit, and to loops with compiled steps or train_on_batch "
            "(docs/growing.md)"
        )
    return wrapped(*args, **kwargs)


class Questions(Clock):
    """Asked before every step whether a rank waits to be let in, or leaves: they tell one another now and then.

    Attributes:
        leaving: the ranks that leave now, by their first numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leaving: list[int] = []

    def _meet(self, answer: tuple[int, int] | None) -> tuple[int, int]:
        ranks = world.current()
        leaves = ranks.first_ranks[ranks.rank] if ranks.growth.leaves else -1
        own = leaves, answer, ranks.growth.starter.tells()
        said = ranks.allgather(own, "ask who comes and leaves")
        ranks.growth.told([words for _, _, told in said for words in told])
        self.leaving = [first for first, _, _ in said if first >= 0]
        if len(self.leaving) == len(said):
            if ranks.rank == 0:
                ranks.log("all ranks got SIGTERM, and the job ends: --faults restart would have saved a checkpoint")
            os.kill(os.getpid(), signal.SIGTERM)  # which ends it now
        # Where rank 0 dies here nobody has an answer, and the next one is asked before the next step.
        now, wait = next((answer for _, answer, _ in said if answer is not None), (Due.NOTHING.value, 1))
        return (Due.SAVE.value if self.leaving else now), wait

    def _answer(self, new_epoch: bool, store: Checkpoints) -> tuple[int, int]:
        due = Due.SAVE if world.current().growth.ready is not None else Due.NOTHING
        each = max(1e-6, (time.monotonic() - self._asked_at) / max(1, self._steps - self._asked))
        return due.value, max(1, min(int(_SECONDS / each), 2 * (self._steps - self._asked)))


def questions(known: resume_fit.Fits) -> Questions:
    """The questions that are asked in this script. Args: known: its calls of `fit`."""
    if not isinstance(known.clock, Questions):
        known.clock = Questions()
    return known.clock


def go_without_leaving(clock: Clock) -> bool:
    """Go on without ranks that leave now; whether there are any. All ranks come here."""
    guard = world.current().guard
    if guard is None or not isinstance(clock, Questions) or not clock.leaving:
        return False
    guard.let_go(clock.leaving)
    return True


def of_the_run() -> dict[str, Any]:
    """What a rank that comes has to know of the run, besides what is trained; for `enter`."""
    return {
        "steps": run_state.current().trained,
        "layers": active_flag.layers().on,
        "shards": world.current().holds_shard,
        "question": resume_fit.fits().clock.until_next,
    }


def let_in(one: Any, place: str, begun: float) -> bool:
    """Meet a rank that has taken what it was given; whether it has come. All ranks come here.

    Args:
        one: that rank, on the first one; None if none has. place: where the job is, in words. begun: by
            `time.perf_counter`, since when the job waits.
    """
    ranks = world.current()
    assert ranks.guard is not None
    who = ranks.broadcast(one and (one.number, one.starter, one.process), "see whether a rank has come")
    if who is None:
        return False
    run_state.current().part(Parts).join()
    bridge, leader = ranks.growth.bridge_to(*who)
    came = leader >= 0 and ranks.guard.extend(bridge, leader)
    if one is not None:
        ranks.growth.came(one, came, place, time.perf_counter() - begun)
    return came


def enter(words: dict[str, Any]) -> None:
    """On a rank that comes, once it has taken what it was given: be one of the ranks of the job.

    Args:
        words: those of the job, with `of_the_run`.

    Raises:
        Refused: they could not be met.
    """
    ranks = world.current()
    arrival = ranks.arrival
    run_state.current().trained = words["steps"]
    active_flag.layers().on, ranks.holds_shard = words["layers"], words["shards"]
    resume_fit.fits().clock.begin_with(words["question"])
    run_state.current().part(Parts).join()
    arrival.enter()
    assert ranks.guard is not None
    if not ranks.guard.extend(arrival.bridge):
        raise Refused("the ranks of the job could not be met")
    ranks.log = arrival.log
    arrival.joined()
    ranks.arrival = None


class GrowingFit(resume_fit.Fit):
    """The `fit` that is under way."""

    def __init__(self, fits: resume_fit.Fits, model: Any):
        ranks = world.current()
        no_store: Any = None
        self._arrival, self._traced, self._drawing = ranks.arrival, False, 0.0
        if self._arrival is not None and fits.replayed:
            raise Refused("its script is in a loop of its own that is over in the job")
        self._taken: tuple[dict[str, Any], dict[str, Any]] | None = None
        super().__init__(fits, model, no_store, None, {"logs": {}})
        ranks.compared.clear()
        if self._arrival is not None:
            self._be_told(*self._arrival.where(self.number))
            self.replaying = True
        self._generator_made = True

    def _be_told(self, words: dict[str, Any], state: bytes) -> None:
        """Where the job is; or all that this `fit` has left, where that is over."""
        self._place = Place(self.number) if "over" in words else Place(self.number, words["epoch"], words["step"])
        if state:
            self._taken = words, plain_encoder.loads(state)
            self._kept = {"logs": {}, **self._taken[1]}

    def passes_over(self, draw: Callable[[], bool]) -> bool:
        if self._arrival is None:
            world.current().growth.at(self.number, (self._epoch, self._step))
            return super().passes_over(draw)
        if self._of().done:
            return False
        if not self._traced:
            self._traced, self._drawing = True, time.monotonic()
            return False
        while not self._before():
            if self._taken is not None:
                self._enter()
                return False
            close = time.monotonic() < self._drawing + _CLOSE
            ask = self._arrival.take if close else self._arrival.where
            self._be_told(*ask(self.number))
            self._drawing = time.monotonic()
            if self._of().done:
                return False
        return super().passes_over(draw)

    def restore(self, last: bool) -> bool:
        if not self._of().done:
            return True  # not in the step that is traced
        if last:
            self._check()
        return super().restore(last)

    def end(self) -> None:
        if self._arrival is not None:
            raise Refused(f"fit {self.number} has ended here, and in the job it is at {self._of()}")
        taken = step_retry.whole(
            lambda: snapshot.take(self.model, self._callbacks, python_draws=True), "take the state of the training"
        )
        growth = world.current().growth
        if taken is not None:
            size = sum(tf.as_dtype(value.dtype).size * int(np.prod(value.shape)) for value in taken["values"])
            growth.leave(self.number, self._words(Place(self.number)), self._state(taken), size)
        growth.at(self.number, None)

    def _differs(self, what: str) -> MatexError:
        return Refused(f"fit {self.number} is not what it is in the job: {what}")

    def _save(self, place: Place, last: bool = False) -> None:
        """Let a rank in. All ranks of the job come here."""
        ranks, begun = world.current(), time.perf_counter()
        assert ranks.guard is not None
        if go_without_leaving(self._fits.clock):
            return
        taken = step_retry.whole(
            lambda: snapshot.take(self.model, self._callbacks, self._python_draws), "take the state of the training"
        )
        one = None
        if ranks.rank == 0:
            assert taken is not None
            one = ranks.growth.hand_over(self._why_not(), self._words(place), self._state(taken))
        if let_in(one, str(place), begun):
            self._begin_anew()

    def _why_not(self) -> str:
        """Why no rank can come to this `fit`, in words; empty where one can."""
        if model_state.of(self.model).row_choice is not None:
            return "the epochs of the fit do not use all rows"
        if self.model.train_function.feed.of_each_rank:
            return "each rank has rows of its own, which are not dealt out anew in the middle of a fit"
        return ""

    def _words(self, place: Place) -> dict[str, Any]:
        return {
            "epoch": place.epoch,
            "step": place.step,
            "compared": dict(world.current().compared),
            "compiled": _compiled(self.model),
            "rebuilt": bool(model_state.of(self.model).whole),
            **of_the_run(),
        }

    def _state(self, taken: dict[str, Any]) -> Callable[[], bytes]:
        committed = model_state.of(self.model).committed
        return lambda: plain_encoder.dumps({**snapshot.settled(taken), "committed": committed})

    def _enter(self) -> None:
        """Take what the job has given, and be one of its ranks."""
        assert self._taken is not None
        words, kept = self._taken
        self._check()
        with world.alone():
            snapshot.give_back(self.model, self._callbacks, kept, first=False)
        model_state.of(self.model).committed = kept["committed"]
        enter(words)
        self._arrival = None
        self.replaying = self._first = False
        self._kept = self._taken = None
        self._begin_anew()

    def _check(self) -> None:
        """See that what this rank has is what the job has."""
        assert self._taken is not None
        ranks, (words, kept) = world.current(), self._taken
        if difference := snapshot.fits(self.model, kept):
            raise self._differs(f"{self.model.name} is another model: {difference}")
        if bool(model_state.of(self.model).whole) != words["rebuilt"]:
            raise self._differs("its steps are rebuilt for rows on one of the two")
        for what, mark in ranks.compared.items():
            if words["compared"].get(what, list(mark)) != list(mark):
                raise self._differs(f"it differs in {what.removeprefix('compare ')}")
        for mine, other in zip(_compiled(self.model), words["compiled"], strict=False):
            if mine != other:
                raise self._differs(f"it has {mine} where the job has {other}")

    def _begin_anew(self) -> None:
        """What is set up once, by all ranks together, those that were there and the one that has come set up anew."""
        self.model._eval_epoch_iterator = self.model.test_function = self.model.predict_function = None
        self.model.train_function.feed.say_again()


def _compiled(model: Any) -> list[str]:
    """What a model was compiled with, as far as plain values say it; rates may have changed."""
    found = [f"loss {getattr(model.loss, '__name__', model.loss)}"] if isinstance(model.loss, (str, type)) else []
    found += [f"{name} {getattr(model, name)}" for name in ("jit_compile", "run_eagerly", "steps_per_execution")]
    for optimizer in keras_lines.optimizers_of(model):
        config = optimizer.get_config()
        plain = {name: value for name, value in config.items() if isinstance(value, (int, float, str, type(None)))}
        found.append(type(optimizer).__name__)
        found += [f"{name} {plain[name]}" for name in sorted(plain) if name not in ("name", "learning_rate")]
    return found


def fit(model: Any, run: Callable[[], Any]) -> Any:
    """Run a `fit` to which ranks can come.

    Args:
        model: of Keras. run: calls Keras' own; returns the History.
    """
    known = resume_fit.fits()
    if known.under_way is not None:
        return run()
    questions(known)
    known.count += 1
    this, before = GrowingFit(known, model), model._initial_epoch
    known.under_way = this
    try:
        history = run()
        this.end()
    except resume_fit.Complete:
        model._initial_epoch, history = before, model.history
    finally:
        known.under_way = None
    return history
