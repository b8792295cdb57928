"""Calls of Keras' loops in code that makes batches, such as a generator that asks a teacher: each rank does them alone.

TensorFlow and Keras run such code ahead of the training, in threads of their own, and on each rank when it likes. So
ranks cannot meet there, nor need they: every rank that makes a batch makes all of it, and so it asks for all of it.

Relies on (Keras 3.3 to 3.15, private): `make_train_function`, `make_test_function` and `make_predict_function` leave
what they make at the object that they are called with, and only read of it else. And on `threading._DummyThread`
(Python 3.10 to 3.14, private), which a thread is that Python has not begun.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from matex_tf.patches.common import under_way

#: What each of Keras' loops runs.
_FUNCTIONS = {
    "fit": ("train", "test"),
    "train_on_batch": ("train",),
    "evaluate": ("test",),
    "test_on_batch": ("test",),
    "predict": ("predict",),
    "predict_on_batch": ("predict",),
}


def make_batches() -> contextlib.AbstractContextManager[None]:
    """What is called in this block makes batches, in the thread that trains."""
    return under_way.having(making_batches=True)


def are_made_here() -> bool:
    """Whether this thread makes batches: it is one of TensorFlow's, or stands beside a loop of Keras."""
    mine = under_way.of_this_thread()
    if mine is not None:
        return mine.making_batches
    of_python = not isinstance(threading.current_thread(), threading._DummyThread)
    return not of_python or under_way.in_keras_anywhere()


@contextlib.contextmanager
def alone(model: Any, loop: str) -> Iterator[None]:
    """Run one of Keras' loops as on one rank.

    Args:
        model: of Keras. loop: a method of it that is in `_FUNCTIONS`.
    """
    for kind in _FUNCTIONS[loop]:
        if kind == "predict" or model.compiled:  # what ranks share stays the model's own
            getattr(model, f"make_{kind}_function")()
    with under_way.apart():
        yield


def plain(model: Any, kind: str) -> Any:
    """The function that Keras makes for a loop, in a thread that is apart.

    Args:
        model: of Keras. kind: "train", "test" or "predict".
    """
    stand_in = _WithoutFunctions(model)
    getattr(type(model), f"make_{kind}_function")(stand_in, True)
    return getattr(stand_in, f"{kind}_function")


class _WithoutFunctions:
    """A model, but for the functions that Keras leaves at it."""

    def __init__(self, model: Any):
        self._model = model
        self.train_function = self.test_function = self.predict_function = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
