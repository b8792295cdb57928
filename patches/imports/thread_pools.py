"""Threads of TensorFlow do not spin where a rank has one core.

A thread of TensorFlow's pools that has nothing to do looks for work some thousand times before it sleeps. Where threads
have cores of their own that saves the time of waking them. Where a rank has one core, it takes the core from the rank's
other threads, or from other ranks, which have work to do.

Relies on (TensorFlow 2.13 to 2.21, private): `Context.config` of tensorflow.python.eager.context, a property that gives
the ConfigProto by which TensorFlow makes its threads; and on `experimental.disable_thread_spinning` of that.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

from matex_tf.patches.common import wrapping


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    context = importlib.import_module("tensorflow.python.eager.context")
    original = wrapping.require(context, "Context.config")

    def config(self: Any) -> Any:
        found = original.fget(self)
        if os.environ.get("TF_NUM_INTRAOP_THREADS") == "1" and not wrapping.alone():
            found.experimental.disable_thread_spinning = True
        return found

    context.Context.config = property(config)
