"""`--data source`: a tf.data pipeline is shared out before its work is done, not after it.

The script's pipeline gets a `shard` in front of its first `map`, `batch` or the like: of p ranks, rank r has elements
r, r + p, r + 2p, … of what comes before, and does 1/p of the work that comes after. `batch(n)` makes a rank's part of
n. The parts of the ranks together are batches of the script's size, and every element is used once; which elements
share a batch is as on one rank only where p divides n and nothing shuffles after the first `map`.

Relies on (TensorFlow 2.16 to 2.21): methods of `tf.data.Dataset` (public), and `_inputs` of a dataset (private).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matex_tf import settings
from matex_tf.core import world
from matex_tf.core.row_partition import OwnRows, span
from matex_tf.errors import MatexError
from matex_tf.patches.common import wrapping
from matex_tf.patches.common.active_flag import ActiveFlag
from matex_tf.patches.sources import pipeline_ownership
from matex_tf.state import notes

#: Methods in front of which a pipeline is shared out; those that open files, only where there are enough of them.
WORK = ("map", "batch", "padded_batch", "ragged_batch", "filter", "unbatch", "cache")
OPENING = ("interleave", "flat_map")


class _Batched(notes.Inside):
    """Of a pipeline that was dealt out: that it has been made into batches."""


#: While Keras or this project makes pipelines for itself, which are left alone.
paused = ActiveFlag("paused")


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    for name in (*WORK, *OPENING):
        wrapping.wrap(module, f"data.Dataset.{name}", _sharing)


def is_script_at_work() -> bool:
    """Whether it is the script that makes a pipeline now, outside of any graph."""
    import tensorflow as tf

    return not paused and tf.executing_eagerly() and not tf.inside_function()


def found(dataset: Any, kind: type[Any] = OwnRows) -> Any:
    """The note of a class, `kind`, on a pipeline, `dataset`: its own or that of what it was made from; None where there
    is none."""
    marks = (notes.found(one, kind) for one in pipeline_ownership.every(dataset))
    return next((mark for mark in marks if mark is not None), None)


def check_batched(dataset: Any) -> None:
    """Raises: MatexError: the pipeline was shared out, and its batches come from elsewhere than `batch`."""
    if found(dataset) == "source" and not found(dataset, _Batched):
        raise MatexError(
            "--data source needs a pipeline with batch(), padded_batch() or ragged_batch(): here the source yields "
            "batches, and cannot be split by rows. Take --data exact."
        )


def _sharing(wrapped: Any, dataset: Any, args: Any, kwargs: Any) -> Any:
    name = wrapped.__name__
    if settings.current().data != "source" or not is_script_at_work():
        return wrapped(*args, **kwargs)
    ranks, mark = world.current(), found(dataset)
    if mark is None and not (name in OPENING and 0 <= int(dataset.cardinality()) < ranks.size):
        with paused():
            shared = dataset.shard(ranks.size, ranks.rank)
        notes.put(shared, OwnRows("source"))
        return getattr(shared, name)(*args, **kwargs)  # comes here again
    if mark == "source" and name.endswith("batch") and name != "unbatch":
        args, kwargs = _own_size(args, kwargs, ranks)
        with paused():
            result = wrapped(*args, **kwargs)
        notes.put(result, _Batched())
        return result
    with paused():
        return wrapped(*args, **kwargs)


def _own_size(args: Any, kwargs: Any, ranks: world.World) -> tuple[Any, Any]:
    """The arguments of `batch` with the rank's part of the batch size."""
    size = int(args[0] if args else kwargs["batch_size"])
    low, high = span(size, ranks.rank, ranks.size)
    own = max(1, high - low)
    return ((own, *args[1:]), kwargs) if args else (args, {**kwargs, "batch_size": own})
