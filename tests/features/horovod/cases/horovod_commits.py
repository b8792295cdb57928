"""Commits of Horovod's elastic states, on ranks."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import tensorflow as tf

from matex_tf.core import world
from matex_tf.faults.place import Place
from matex_tf.features.restart.checkpoints import Checkpoints
from matex_tf.storage import plain_encoder
from tests.support.cases.callback_state import Seen


class State:
    """What commits are made of."""

    def __init__(self, **objects):
        self.objects = objects

    def given(self):
        return [tf.constant([1.0, 2.0])], self.objects


def commit(tmp):
    """Commits of a state that holds an object for a while: the places that were written, and what was said."""
    from tests.features.horovod.cases import horovod_script  # noqa: F401  # first, or this rank's patches step aside

    from matex_tf.features.horovod.names.core import commits  # isort: skip

    store = Checkpoints(Path(tmp), "script.py", False, world.current().log)
    store.open()
    state = State(batch=3, sampler=5)
    kept = commits._Kept(state, 1, store)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        for state.objects["sampler"] in (5, Seen(), Seen(), [6]):
            kept.keep()
            store.finish()
    places = [place.epoch for place in store.places(1, "elastic")]
    _, found = store.find(1, "elastic") or (Place(0), {})
    return (
        places,
        plain_encoder.loads(found["objects"]),
        found["variables"][0].tolist(),
        said.getvalue().splitlines(),
    )
