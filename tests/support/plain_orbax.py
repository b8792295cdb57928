"""As much of orbax-checkpoint, which is large and brings JAX, as `keras.callbacks.OrbaxCheckpoint` uses.

A checkpoint is a directory with the weights; one that is saved in the background is written when somebody waits for it,
as late as it may be.
"""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace

import keras
import numpy as np


class _Checkpointer:
    def __init__(self, directory, **policies):
        self._directory = os.fspath(directory)
        self._waiting = {}
        os.makedirs(self._directory, exist_ok=True)

    def save_checkpointables_async(self, step, payload):
        self._waiting[step] = payload["pytree"]["trainable_variables"]
        return SimpleNamespace(result=self.wait)

    def wait(self):
        for step in sorted(self._waiting):
            os.mkdir(os.path.join(self._directory, str(step)))  # which fails where it is there
            weights = keras.tree.flatten(self._waiting.pop(step))
            with open(os.path.join(self._directory, str(step), "weights.npz"), "wb") as file:
                np.savez(file, *weights)

    close = wait


def install():
    """Let Keras find it."""
    from keras.src.utils.module_utils import ocp

    policies = SimpleNamespace(LatestN=int, FixedIntervalPolicy=int)
    training = SimpleNamespace(
        Checkpointer=_Checkpointer, preservation_policies=policies, save_decision_policies=policies
    )
    ocp.module = SimpleNamespace(training=training, Context=contextlib.nullcontext)
    ocp.initialize = lambda: None
