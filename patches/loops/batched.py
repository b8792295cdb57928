"""Whether the elements of a tf.data pipeline are batches, and who asks for them.

Relies on (TensorFlow 2.16 to 2.21, private): `_inputs` of a dataset, and the names of dataset classes;
`ag_source_map` of what AutoGraph has converted, `converted_f` in the function that calls it.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from matex_tf.patches.sources.pipeline_ownership import inputs_of, unwrapped

#: Parts of the names of datasets whose elements are batches, and of those whose elements are something else than their
#: inputs' are. Of other datasets (map, shuffle, take, …) the elements are batches where their inputs' are.
_BATCHES = ("Batch", "GroupByWindow", "GroupByReducer")
_OTHER = ("Unbatch", "Window", "FlatMap", "ParallelInterleave", "InterleaveDataset", "FromGenerator")

#: What works for whoever calls it; an optimizer's `minimize` takes gradients for a script's loop.
_OWN = (
    *("matex_tf.", "tensorflow.python.", "wrapt"),
    *(f"{package}.src.{room}." for package in ("keras", "tf_keras") for room in ("optimizers", "mixed_precision")),
)
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
    return _written(frame or first)


def _written(frame: FrameType) -> tuple[str, int]:
    """File and line of the source of what a frame runs; AutoGraph compiles a file of its own from that."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    at: FrameType | None = frame if "__autograph_generated_file" in file else None
    while at is not None:
        for place, origin in getattr(at.f_locals.get("converted_f"), "ag_source_map", {}).items():
            if (place.filename, place.lineno) == (file, line):
                return origin.loc.filename, origin.loc.lineno
        at = at.f_back
    return file, line


def _module(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '')}."
