"""Calls of `tf.data.Dataset` are kept in a test, as in a job of several ranks: see `patches/sources/calls.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from matex_tf.patches.sources import calls


@pytest.fixture
def calls_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import it, and name it in `pytest.mark.usefixtures`."""

    def keeping(original: Any) -> Callable[..., Any]:
        return lambda data, *args, **kwargs: calls.kept(original.__get__(data), data, args, kwargs)

    for name in (*calls.METHODS, *calls.OF_FUNCTIONS):
        monkeypatch.setattr(tf.data.Dataset, name, keeping(getattr(tf.data.Dataset, name)))
