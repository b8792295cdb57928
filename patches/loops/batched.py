"""Whether the elements of a tf.data pipeline are batches, and who asks for them.

Relies on (TensorFlow 2.16 to 2.21, private): `_inputs` of a dataset, and the names of dataset classes.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from matex_tf.patches.data.pipeline_ownership import inputs_of, unwrapped

#: Parts of the names of datasets whose elements are batches, and of those whose elements are something else than their
#: inputs' are. Of other datasets (map, shuffle, take, …) the elements are batches where their inputs' are.
_BATCHES = ("Batch", "GroupByWindow", "GroupByReducer")
_OTHER = ("Unbatch", "Window", "FlatMap", "ParallelInterleave", "InterleaveDataset", "FromGenerator")

_OWN = ("matex_tf.", "tensorflow.python.", "wrapt")
_KERAS = ("keras.", "tf_keras.")


def is_batched(dataset: Any) -> bool:
    """Whether the first axis of a pipeline's elements runs over rows, since it has gone through `batch` or its kin."""
    dataset = unwrapped(dataset)
    name = type(dataset).__name__
    if "DirectedInterleave" not in name:
        if any(part in name for part in _OTHER) and "GroupByWindow" not in name:
            return False
        if any(part in name for part in _BATCHES):
            return True
    return any(map(is_batched, inputs_of(dataset)))


def caller() -> tuple[str, int] | None:
    """File and line of the script that iterates; None where Keras does so for itself (`adapt`, say).

    Where a package stands between (a progress bar), the line in the script that called it.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _module(frame).startswith(_OWN):
        frame = frame.f_back
    if frame is None or _module(frame).startswith(_KERAS):
        return None
    first = frame
    while frame is not None and "site-packages" in frame.f_code.co_filename:
        frame = frame.f_back
    frame = frame or first
    return frame.f_code.co_filename, frame.f_lineno


def _module(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '')}."
