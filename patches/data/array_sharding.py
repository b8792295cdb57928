"""Arrays given to `fit`, `evaluate` and `predict`: each rank gathers its own rows of every batch, and no others.

The ranks compare what they hold. The same everywhere: the data are whole, Keras' own pipeline makes the indices of each
batch (so that `shuffle` draws as on one rank), and a rank gathers its part. Different rows: each rank holds a shard,
and `matex_tf.core.row_partition.Interleaving` says how many rows of it go into each batch. A tf.data pipeline that
comes from `DataSet.to_tf_data` yields a rank's own rows already.

Relies on (Keras 3.3 to 3.15, private): `ArrayDataAdapter.get_tf_dataset`, its `_inputs`, `_num_samples`, `_batch_size`,
`_partial_batch_size`, `_size` and `_shuffle`; `array_slicing.convert_to_sliceable`; `TFEpochIterator._num_batches` and
`_distributed_dataset`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.core import starting, world
from matex_tf.errors import MatexError
from matex_tf.patches.common import log_once
from matex_tf.patches.data import batch_indices, epoch_orders, local_batch
from matex_tf.patches.data.local_batch import Gatherer, LocalBatch, at_least_one_row
from matex_tf.patches.data.lost_rows import Orphans, found
from matex_tf.patches.data.row_batches import RowBatches, as_tf_data
from matex_tf.patches.sources import array_fingerprint, decide, reasons, source_sharding
from matex_tf.patches.sources.decide import Source, Whose
from matex_tf.patches.sources.reasons import NOTHING, Reason, Why
from matex_tf.patches.steps.row_choice import RowChoice
from matex_tf.readers.own_rows import OwnRows
from matex_tf.state import notes


class DataLayout(NamedTuple):
    """What the ranks hold: rows of each rank, and whether those are parts of a whole."""

    counts: list[int]
    sharded: bool

    @property
    def total(self) -> int:
        """Rows that an epoch uses."""
        return sum(self.counts) if self.sharded else self.counts[0]


def pipeline(
    adapter: Any,
    original: Callable[[], Any],
    purpose: str,
    asked: dict[str, Any],
    elements: Any = None,
    chosen: RowChoice | None = None,
    epochs: int | None = None,
) -> Any:
    """What an ArrayDataAdapter gives for a pipeline: `RowBatches`, or one of whole batches where arrays are sparse.

    Args:
        adapter: the adapter; its sizes become those of the global batches.
        original: its own `get_tf_dataset`.
        purpose: "fit", "evaluate" or "predict".
        asked: the arguments of the epoch iterator: the data, batch_size and steps_per_epoch.
        elements: the arrays as they go into the pipeline; None: as Keras 3 gives them to tf.data.
        chosen: says which rows an epoch uses; None: all.
        epochs: that one iterator of a tf.data pipeline walks over, as Keras 2 has it; None: an iterator has one.

    Raises:
        RanksDisagree: the columns differ between ranks.
        MatexError: sparse arrays differ between ranks, or there are fewer rows that go round than ranks; arrays whose
            rows cannot be left out.
    """
    ranks, training = world.current(), purpose == "fit"
    leaves = [leaf for leaf in tf.nest.flatten(adapter._inputs) if leaf is not None]
    holding, orphans = _layout(leaves, asked, purpose)
    recorded = starting.recorded() and not strategies.current().apart  # else no batch is that of one rank
    if training and holding.sharded and elements is None and recorded:
        elements, holding, orphans = _as_one_rank_has_them(adapter, holding), DataLayout([holding.total], False), None
    if training:
        _tell(holding, asked)
    if holding.sharded and not asked.get("batch_size") and asked.get("steps_per_epoch"):
        adapter._batch_size = math.ceil(holding.total / asked["steps_per_epoch"])
    per_rank = training and settings.current().batch == "per-rank"
    size = adapter._batch_size
    global_size = size * ranks.size if per_rank else size
    if _decide(leaves, holding.sharded, training, chosen):
        return original()
    adapter._size = math.ceil(holding.total / size)
    adapter._partial_batch_size = holding.total % size
    # The arrays go in as elements: what a function of a pipeline captures of NumPy becomes part of a graph, up to 2 GB.
    if elements is None:
        elements = _as_elements(adapter._inputs)
    if chosen is not None:
        counts, own = (holding.counts, ranks.rank) if holding.sharded else ([holding.total], 0)
        chosen.of_arrays(counts, own, size, global_size, tf.nest.flatten(elements)[0], orphans)
    if training:
        passed = strategies.current().pass_rows(adapter, elements, holding, global_size, chosen)
        if passed is not None:
            return passed if epochs is None else as_tf_data(passed).repeat(epochs)
    if not holding.sharded:
        each = size if per_rank else 0
        order = batch_indices.of_whole(adapter, original, global_size, each, chosen, epochs or 1)
    elif chosen is None:
        order = batch_indices.of_shards(adapter, holding.counts, global_size, orphans, epochs=epochs or 1)
    else:
        order = chosen.tags_of_shards(adapter, holding.counts, global_size)
    rows = Gatherer(elements, 0 if chosen is None else chosen.offset, tagged=chosen is not None)
    origin = [0, ranks.generation]
    if orphans is not None:
        notes.keep(adapter, orphans)  # as long as the data are walked over
        origin = [local_batch.remember(orphans), orphans.generation]
    elif ranks.guard is not None and not holding.sharded:
        origin = [local_batch.remember(rows), ranks.generation]
    draws = epoch_orders.asked() is not None or chosen is not None or epochs is not None or orphans is not None
    made = RowBatches(order, rows, origin, not holding.sharded, repeats=not draws)
    return made if epochs is None else as_tf_data(made)


def _as_one_rank_has_them(adapter: Any, holding: DataLayout) -> Any:
    """Of a script that is recorded, the rows of all ranks on each, so that the batches are those of one rank."""
    log_once.log("recorded: the rows of the ranks are put together, so that batches are those of one rank")
    adapter._num_samples = holding.total
    ranks, what = world.current(), "put the rows of the ranks together"
    return tf.nest.map_structure(
        lambda leaf: None if leaf is None else tf.constant(ranks.allgather_rows(np.asarray(leaf), what)),
        _as_elements(adapter._inputs, ghosts=False),
    )


def _layout(leaves: list[Any], asked: dict[str, Any], purpose: str) -> tuple[DataLayout, Orphans | None]:
    """Which rows each rank holds; and, where ranks may die or come, what deals them out anew."""
    ranks, orphans = world.current(), None
    if ranks.guard is not None and purpose != "predict":
        given = [leaf for name in ("x", "y", "sample_weight") for leaf in tf.nest.flatten(asked.get(name))]
        orphans = found([leaf for leaf in given if leaf is not None], leaves, purpose == "fit")
    if purpose == "fit" and ranks.growth is not None:
        ranks.growth.dealt = None if orphans is None else orphans.told
    if orphans is not None:
        _compare_columns(leaves)
        return DataLayout(orphans.counts, True), orphans
    return compare(leaves), None


def _decide(leaves: list[Any], sharded: bool, training: bool, chosen: RowChoice | None) -> Why:
    """Why a rank does not gather its own rows of arrays, but cuts them out of whole batches; empty if it gathers them.

    Raises:
        MatexError: ranks cannot have rows of their own of sparse arrays; or rows cannot be left out.
    """
    why = decide.asked(Source.OWN if sharded else Source.NUMBERS, training)
    why = why or (Reason.SPARSE() if any(map(_sparse, leaves)) else NOTHING)
    if sharded and why:
        raise MatexError(
            "the ranks hold different rows of sparse arrays: give every rank the whole, or make the arrays dense."
        )
    if chosen is not None and why:
        instead = reasons.reason_of(why).instead
        raise MatexError(f"{chosen.asked} leaves out rows of dense arrays, and {why}: take {instead}.")
    return why


def as_own(dataset: Any, found: Whose, what: str) -> Any:
    """A pipeline of rows of the rank's own, as `LocalBatch`; says so if nobody has asked for it.

    Args:
        dataset: of batches. found: who holds them, and whether the script has marked that. what: the call, for the
            line.
    """
    if found.mark == "source" and what == "fit":
        log_once.log("--data source: each rank does its part of the pipeline's work; batches may hold other rows")
    if not found.mark:
        meant = world.current().holds_shard
        log_once.log(
            f"the data of {what}: each rank has rows of its own"
            + ("" if meant else ", since their pipelines are made of other rows")
            + ": together they are the batch."
            + ("" if meant else " --rows shared says that they are not (docs/data.md).")
        )
    with source_sharding.paused():
        return dataset.map(LocalBatch.unknown)


def _as_elements(inputs: Any, ghosts: bool = True) -> Any:
    """The arrays as Keras gives them to tf.data; with `ghosts` one row of zeros where a rank has none."""
    from keras.src import tree
    from keras.src.trainers.data_adapters import array_slicing

    arrays = tree.lists_to_tuples(array_slicing.convert_to_sliceable(inputs, target_backend="tensorflow"))
    return tf.nest.map_structure(at_least_one_row, arrays) if ghosts else arrays


def _sparse(leaf: Any) -> bool:
    return isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor)) or hasattr(leaf, "tocsr") or hasattr(leaf, "tocoo")


def compare(leaves: list[Any]) -> DataLayout:
    """Compare the arrays that the ranks hold: in memory they are the same, unless the script has made them differ.

    Raises:
        RanksDisagree: dtypes or columns differ.
        MatexError: ranks that shall have the same rows have other numbers of them.
    """
    ranks, setting = world.current(), settings.current().rows
    rows = int(leaves[0].shape[0])
    _compare_columns(leaves)
    prints = [array_fingerprint.of(array_fingerprint.rows(leaf), leaf.shape) for leaf in leaves if not _sparse(leaf)]
    held = ranks.compare((rows, prints), "compare the rows of the data")
    counts = [count for count, _ in held]
    if setting == "shared" and len(set(counts)) > 1:
        numbers = ", ".join(map(str, counts[:16]))
        raise MatexError(f"--rows shared, but the ranks have other numbers of rows ({numbers}): take --rows auto.")
    others = [one for count, one in held[1:] if count == rows]
    same = len(set(counts)) == 1 and all(all(map(array_fingerprint.alike, held[0][1], one)) for one in others)
    return DataLayout(counts, ranks.size > 1 and (setting == "own" or (setting == "auto" and not same)))


def _compare_columns(leaves: list[Any]) -> None:
    columns = [_column(i, leaf) for i, leaf in enumerate(leaves)]
    world.current().barrier("compare the columns of the data", columns)


def _tell(holding: DataLayout, asked: dict[str, Any]) -> None:
    """Say what was found, and what to look for if the script opens no `DataSet`. Of its rows that says it itself."""
    size = world.current().size
    if size == 1:
        return
    if not holding.sharded:
        if settings.current().batch == "per-rank":
            each = f"takes one of every {size} batches"
        elif strategies.current().deals_parts:
            each = "trains on the parts of batches that its group gets"
        else:
            each = "computes its part of each batch"
        log_once.log(f"each of {size} ranks has the same {holding.total:,} rows, and {each}")
        return
    counts = ", ".join(map(str, holding.counts[:16])) + (", …" if size > 16 else "")
    if any(isinstance(leaf, OwnRows) for name in ("x", "y") for leaf in tf.nest.flatten(asked.get(name))):
        return
    advice = f" If all ranks should hold the same data, take --rows shared, and {log_once.LIKELY}."
    if world.current().holds_shard:
        advice = ""
    log_once.log(f"each rank holds rows of its own ({counts}): {holding.total} rows an epoch, each used once.{advice}")


def _column(position: int, leaf: Any) -> str:
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        dtype = "table of " + ", ".join(map(str, leaf.dtypes)) if hasattr(leaf, "dtypes") else type(leaf).__name__
    return f"array {position}: {getattr(dtype, 'name', dtype)}, rows of shape {tuple(leaf.shape[1:])}"
