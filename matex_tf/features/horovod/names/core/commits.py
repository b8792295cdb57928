"""Commits of elastic functions on disk: under `--faults restart` a job that starts again goes on from the last of them.

A function is known by its place among the calls of functions under `hvd.elastic.run`. What a `fit` inside of one does
has checkpoints of its own, see `resume_fit`: a commit in the middle of a `fit` is not written.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from matex_tf.core import world
from matex_tf.core.slots import Checkpoints
from matex_tf.errors import MatexError
from matex_tf.faults.place import Place
from matex_tf.patches.common import log_once
from matex_tf.patches.recovery import resume_fit
from matex_tf.state import run_state
from matex_tf.storage import plain_encoder


class _Kept:
    """The commits of the function that runs."""

    def __init__(self, state: Any, number: int, store: Checkpoints):
        """Commits of one call.

        Args:
            state: an `elastic.ObjectState`.
            number: of the function's call, from 1.
            store: the checkpoints of the job.
        """
        self.state = state
        self._store = store
        self._number = number
        self._commits = 0
        self._written = time.monotonic()

    def go_on(self) -> None:
        """Give the state what the last commit of the job before had; its `sync` brings it to all ranks.

        Raises:
            MatexError: on every rank, the state is another one.
        """
        ranks, store = world.current(), self._store
        found = store.find(self._number, "elastic") if ranks.rank == 0 else None
        fits = ranks.broadcast(None if found is None else (found[0].epoch, found[1]["fits"]), "go on from a commit")
        if fits is None:
            return
        self._commits, fits_done = fits
        resume_fit.fits().count = fits_done  # the script gets past them without making them again
        failure = None
        self.state.make_variables()
        if found is not None:
            failure = self.state.take(found[1]["variables"], plain_encoder.loads(found[1]["objects"]))
        failure = ranks.broadcast(failure, "take over a commit")
        if failure:
            raise MatexError(
                f"elastic function {self._number} is not what it was in the run that wrote the commit: {failure}. To "
                f"begin again, leave out --resume or remove {store.path}."
            )
        log_once.log(f"elastic function {self._number} continues from its commit {self._commits}")

    def keep(self) -> None:
        """The state has been committed."""
        self._commits += 1
        made = resume_fit.fits()
        if world.current().rank or self._store.busy or made.under_way is not None:
            return
        if time.monotonic() - self._written < self._store.seconds:
            return
        self._written = time.monotonic()
        variables, objects = self.state.given()
        refused = list(filter(None, (plain_encoder.holds(value, f"state.{name}") for name, value in objects.items())))
        if refused:
            log_once.log(
                f"commits of elastic function {self._number} are not written while {refused[0]}: keep numbers, text, "
                "arrays, and lists, tuples, sets and dicts of those in the state. After a death the function "
                "continues from an earlier commit, or begins again"
            )
            return
        written, fits = plain_encoder.dumps(objects), made.count  # now: the script may change them meanwhile
        self._store.save(
            Place(self._number, self._commits, 0, "elastic"),
            lambda: {"variables": [value.numpy() for value in variables], "objects": written, "fits": fits},
        )


@dataclasses.dataclass
class _Functions:
    """The calls of functions under `run`: how many there have been, and the commits of the one that runs."""

    count: int = 0
    under_way: _Kept | None = None


def begin(state: Any) -> None:
    """A function under `run` is about to be called."""
    store, functions = world.current().checkpoints, run_state.current().part(_Functions)
    if store is None:
        return
    functions.count += 1
    functions.under_way = None
    if not hasattr(state, "given"):
        log_once.log(f"commits of a {type(state).__name__} are not written: after a death its function begins again")
        return
    functions.under_way = _Kept(state, functions.count, store)
    if store.resumed:
        functions.under_way.go_on()


def committed(state: Any) -> None:
    """A state has been committed."""
    kept = run_state.current().part(_Functions).under_way
    if kept is not None and kept.state is state:
        kept.keep()
