"""How far a network is to be trusted when it says that it is sure: temperature scaling (arXiv 1706.04599).

Arrays in, numbers out; nothing here knows of Keras.
"""

from __future__ import annotations

import math

import numpy as np

_ENOUGH = 50  # labels to judge by; older ones help out where the last are fewer
_FEWEST = 20  # labels, or nothing is known
_STEPS = np.geomspace(1, 20, 60)  # temperatures that are tried


class Calibration:
    """Judges a network by labels that it has not learned from, each judged when the network first meets it.

    Attributes:
        temperature: what its logits are divided by, so that of the images of which it is then p sure a share p is
            right. It is 1 at least, and infinite where too few labels are known: then it is sure of nothing.
    """

    def __init__(self) -> None:
        self.temperature = math.inf
        self._said: np.ndarray | None = None
        self._labels = np.zeros(0, np.int64)

    def judge(self, said: np.ndarray, labels: np.ndarray) -> None:
        """Find the temperature from what the network says now.

        Args:
            said: probabilities (images, classes) of images that it has not learned from.
            labels: of these.
        """
        if self._said is not None:
            said, labels = np.concatenate([said, self._said]), np.concatenate([labels, self._labels])
        wanted = max(_ENOUGH, len(labels) - len(self._labels))
        self._said, self._labels = said[:wanted], labels[:wanted]
        if len(self._labels) >= _FEWEST:
            self.temperature = temperature(self._said, self._labels)


def temperature(said: np.ndarray, labels: np.ndarray) -> float:
    """The temperature with which probabilities, (images, classes), fit the labels best: the least cross-entropy."""
    logits = np.log(np.maximum(said.astype(np.float64), 1e-12))
    own = np.arange(len(labels)), labels

    def cross_entropy(divisor: float) -> float:
        scaled = logits / divisor
        most = scaled.max(axis=1)
        return float((most + np.log(np.exp(scaled - most[:, None]).sum(axis=1)) - scaled[own]).mean())

    return float(min(_STEPS, key=cross_entropy))
