"""Commits of elastic functions on disk: under `--faults restart` a job that starts again goes on from the last of them.

A function is known by its place among the calls of functions under `hvd.elastic.run`. What a `fit` inside of one does
has checkpoints of its own, see `resume_fit`: a commit in the middle of a `fit` is not written.
"""

from __future__ import annotations

import time
from typing import Any

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.faults import checkpoints
from matex_tf.faults.checkpoint_files import Place
from matex_tf.patches.common import log_once
from matex_tf.patches.recovery import resume_fit
from matex_tf.storage import plain_encoder


class _Kept:
    """The commits of the function that runs."""

    def __init__(self, state: Any, number: int):
        """Args: state: an `elastic.ObjectState`. number: of the function's call, from 1."""
        self.state = state
        self._number = number
        self._commits = 0
        self._written = time.monotonic()

    def go_on(self) -> None:
        """Give the state what the last commit of the job before had; its `sync` brings it to all ranks.

        Raises:
            MatexError: on every rank, the state is another one.
        """
        ranks, store = world.current(), checkpoints.current
        assert store is not None
        found = store.find(self._number, "elastic") if ranks.rank == 0 else None
        fits = ranks.broadcast(None if found is None else (found[0].epoch, found[1]["fits"]), "go on from a commit")
        if fits is None:
            return
        self._commits, fits_done = fits
        resume_fit.go_on_behind(fits_done)
        failure = None
        self.state.make_variables()
        if found is not None:
            failure = self.state.take(found[1]["variables"], plain_encoder.loads(found[1]["objects"]))
        failure = ranks.broadcast(failure, "take over a commit")
        if failure:
            raise MatexError(
                f"elastic function {self._number} is not what it was in the run that wrote the commit: {failure}. To "
                f"begin anew, leave out --resume or remove {store.path}."
            )
        log_once.log(f"elastic function {self._number} goes on from its commit {self._commits}")

    def keep(self) -> None:
        """The state has been committed."""
        self._commits += 1
        store = checkpoints.current
        if store is None or world.current().rank or store.busy or resume_fit.fitting():
            return
        if time.monotonic() - self._written < settings.current().checkpoint_seconds:
            return
        self._written = time.monotonic()
        variables, objects = self.state.given()
        refused = list(filter(None, (plain_encoder.holds(value, f"state.{name}") for name, value in objects.items())))
        if refused:
            log_once.log(
                f"commits of elastic function {self._number} are not written while {refused[0]}: on disk go numbers, "
                "text, arrays, and lists, tuples, sets and dicts of those; after a death the function goes on from an "
                "earlier commit, or begins anew"
            )
            return
        written, fits = plain_encoder.dumps(objects), resume_fit.fits()  # now: the script may change them meanwhile
        store.save(
            Place(self._number, self._commits, 0, "elastic"),
            lambda: {"variables": [value.numpy() for value in variables], "objects": written, "fits": fits},
        )


_functions = 0
_under_way: _Kept | None = None


def begin(state: Any) -> None:
    """A function under `run` is about to be called."""
    global _functions, _under_way
    if checkpoints.current is None:
        return
    _functions += 1
    _under_way = None
    if not hasattr(state, "given"):
        log_once.log(f"commits of a {type(state).__name__} are not written: after a death its function begins anew")
        return
    _under_way = _Kept(state, _functions)
    if checkpoints.current.resumed:
        _under_way.go_on()


def committed(state: Any) -> None:
    """A state has been committed."""
    if _under_way is not None and _under_way.state is state:
        _under_way.keep()
