"""How far tf.data reads ahead of what uses a pipeline.

A process with a tuned pipeline makes the next element while the last one is used, also if the script asks for no
`prefetch`; its maps do so too. What it has begun is drawn, such as the order of the next epoch of a `shuffle`. So who
walks over the same data again gets another order if that epoch had begun. Buffers grow where a step waits for them:
what is said here holds if steps take longer than to make a batch.

Relies on (TensorFlow 2.16 to 2.21, private): names of classes of datasets; their `_input_dataset`, `_buffer_size` and
`_num_parallel_calls`. Where one is gone nothing reads ahead.
"""

from __future__ import annotations

from typing import Any


def is_asynchronous(dataset: Any) -> bool:
    """Whether its last stage makes elements ahead; tf.data prefetches behind any other one."""
    return _stage(dataset) > 0


def steady(dataset: Any) -> Any:
    """It with what a tuned pipeline prefetches at its end, where that draws: by one, so that ranks draw the same."""
    last = _without_options(dataset)
    if not is_asynchronous(last):
        return dataset.prefetch(1)
    if _name(last) == "Prefetch" and int(last._buffer_size) < 0 and shuffles(last):
        return last._input_dataset.prefetch(1).with_options(dataset.options())
    return dataset


def shuffles(dataset: Any) -> bool:
    """Whether a pipeline draws orders, which depend on how far others have read."""
    return "Shuffle" in _name(dataset) or any(map(shuffles, getattr(dataset, "_inputs", list)()))


def batches_ahead(dataset: Any) -> int:
    """How many batches one process makes before they are wanted."""
    ahead = 0 if is_asynchronous(dataset) else 1
    one = dataset
    while one is not None and _name(one) not in ("ParallelBatch", "Batch", "PaddedBatch"):
        ahead += 0 if _name(one) == "Options" else _stage(one)
        one = getattr(one, "_input_dataset", None)
    return ahead + (0 if one is None else _stage(one))


def _stage(dataset: Any) -> int:
    """How many elements a stage makes ahead."""
    dataset = _without_options(dataset)
    name, before = _name(dataset), getattr(dataset, "_input_dataset", None)
    if name == "Prefetch":
        size = int(getattr(dataset, "_buffer_size", 0))
        return 1 if size < 0 else size
    if name == "ParallelMap":
        return max(1, int(getattr(dataset, "_num_parallel_calls", 1)))
    if name == "Batch":  # TensorFlow makes one stage of the two, which fills the next batch
        return int(_name(_without_options(before)) in ("Map", "ParallelMap"))
    return int(name in ("ParallelBatch", "ParallelInterleave"))


def _without_options(dataset: Any) -> Any:
    while _name(dataset) == "Options":
        dataset = dataset._input_dataset
    return dataset


def _name(dataset: Any) -> str:
    return type(dataset).__name__.removeprefix("_").removesuffix("Dataset")
