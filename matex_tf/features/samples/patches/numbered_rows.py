"""Pipelines whose rows have numbers, for `--prune-samples`: of tf.data, and of a `PyDataset`.

Elements of a tf.data pipeline are counted where they begin, before anything shuffles; those that an epoch leaves out
are taken away there, so that no map is done for them. What follows is done again with the number beside each element.
A `PyDataset` has rows by the numbers of its batches; a batch of which no row is used is not made.

Every rank makes all rows that are used.

Relies on (TensorFlow 2.16 to 2.21, private): see `deferred` and `own_rows`; `_buffer_size`, `_seed`, `_seed2` and
`_reshuffle_each_iteration` of what `shuffle` gives. (Keras 3.3 to 3.15, private): see `pydatasets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.features.samples import scoring
from matex_tf.features.samples.patches import array_tags
from matex_tf.patches.common import row_slicing
from matex_tf.patches.division import deferred, own_rows
from matex_tf.patches.sources import calls, source_sharding
from matex_tf.patches.sources.pipeline_ownership import unwrapped
from matex_tf.patches.steps.row_choice import TaggedRows
from matex_tf.patches.turns import pydatasets
from matex_tf.patches.turns.in_turn import flat

if TYPE_CHECKING:
    from matex_tf.features.samples.patches.pruning import Pruning

_MIXING = ("Shuffle", "Random", "Generator", "Sample")


def of_tf_data(dataset: Any, pruning: Pruning, ranks: int) -> Any:
    """A pipeline of `TaggedRows`.

    Args:
        dataset: batches, the same on every rank.
        ranks: how many batches a step of all ranks has.

    Raises:
        MatexError: nobody can say which row is which.
    """
    try:
        with source_sharding.paused():
            return _of_tf_data(unwrapped(dataset), pruning, ranks)
    except (AttributeError, TypeError) as error:
        raise _refused(f"this kind of dataset is not known ({error})") from error


def _refused(why: str) -> MatexError:
    return MatexError(
        f"--prune-samples: nobody can say which row of this tf.data pipeline is which: {why}. Let it be a source of "
        "known length, such as from_tensor_slices, then shuffle, map and batch; or give fit arrays; or leave out "
        "--prune-samples and --sample-scores (docs/samples.md)."
    )


def _of_tf_data(dataset: Any, pruning: Pruning, ranks: int) -> Any:
    behind, batched = _peeled(dataset)
    if calls.kind(batched) not in own_rows.BATCHES:
        raise _refused(f"{calls.words(batched)} comes after batch, or there is no batch")
    if any(isinstance(one, deferred.Stage) is False for one in behind):
        raise _refused("it shuffles whole batches")
    before, base = _peeled(batched._input_dataset)
    if why := _unfit(base):
        raise _refused(why)
    size, drop = int(batched._batch_size), bool(batched._drop_remainder)
    pruning.over([int(base.cardinality())], 0, size, size * ranks, drop=drop)
    data = _used(deferred.flat(base), pruning)
    for one in reversed(before):
        data = _again(data, one)
    data = deferred.batched(data, batched, size, tf.TensorSpec([], tf.int64), drop)
    for one in reversed(behind):
        data = _again(data, one)
    spec = TaggedRows(
        tf.TensorSpec([None], tf.int64), tf.nest.map_structure(row_slicing.any_rows, dataset.element_spec)
    )
    data = deferred.restructured(data, spec, data)
    options = tf.data.Options().merge(dataset.options())
    options.deterministic = True
    return data.with_options(options).prefetch(2)


def _peeled(dataset: Any) -> tuple[list[Any], Any]:
    """The maps and shuffles at the end of a pipeline, the last one first, and what stands in front of them."""
    ops, one = [], unwrapped(dataset)
    while True:
        kind = calls.kind(one)
        if kind == "map":
            ops.append(deferred.stage_of(one))
        elif kind == "shuffle":
            ops.append(one)
        elif kind not in ("prefetch", "with_options") and deferred.origin_of(one) is None:
            return ops, one
        one = unwrapped(one._inputs()[0])


def _unfit(base: Any) -> str:
    """Why elements cannot be counted here, in words; empty where they can."""
    if int(base.cardinality()) < 0:
        return f"nobody knows how many elements {calls.words(base)} has"
    pending = [base]
    while pending:
        one = unwrapped(pending.pop())
        if any(part in type(one).__name__ for part in _MIXING):
            return f"{calls.words(one)} comes before {calls.words(base)}"
        if getattr(one, "_deterministic", None) == "false":
            return "deterministic=False lets its elements come in any order"
        pending += one._inputs()
    return ""


def _used(base: Any, pruning: Pruning) -> Any:
    """The elements that an epoch uses, each behind its tag; tuples of tensors."""

    @tf.autograph.experimental.do_not_convert
    def is_used(row: Any, codes: Any) -> Any:
        return codes[row[0]] != scoring.LEFT_OUT

    @tf.autograph.experimental.do_not_convert
    def tagged(row: Any, codes: Any) -> Any:
        number, element = row
        return (tf.where(codes[number] == scoring.SCALED, -1 - number, number), *element)

    return tf.data.Dataset.zip((base.enumerate(), pruning.codes_of_epoch())).filter(is_used).map(tagged)


def _again(data: Any, one: Any) -> Any:
    """Do a map or a shuffle with elements that have a tag in front."""
    if isinstance(one, deferred.Stage):
        return deferred.apply(data, [one], 1)
    seed = int(one._seed2) if int(one._seed) or int(one._seed2) else None
    return data.shuffle(int(one._buffer_size), seed, bool(one._reshuffle_each_iteration))


class _All(pydatasets.MyTurns):
    """The batches of which an epoch uses a row, made by every rank."""

    def __init__(self, adapter: Any, used: Callable[[int], bool]):
        super().__init__(adapter, range)
        self._used = used

    def draw(self) -> None:
        self._places = self.places = [place for place in self.order() if self._used(place)]


def of_pydataset(adapter: Any, pruning: Pruning, ranks: int) -> Any:
    """A pipeline of `TaggedRows` from a PyDatasetAdapter. Args: ranks: batches that a step of all ranks has.

    Raises:
        MatexError: nobody can say which row is which.
    """
    data, enqueuer = adapter.py_dataset, adapter.enqueuer
    kind = type(data)
    why = ""
    if data.num_batches is None:
        why = "has no length"
    elif pydatasets._has_hooks(data):
        why = "does something of its own between epochs, and may put its rows in another order"
    if why:
        raise MatexError(
            f"--prune-samples: nobody can say which row of {kind.__name__} is which: it {why}. Let __getitem__ depend "
            "on the number of the batch alone (fit shuffles the order of batches), or leave out --prune-samples and "
            "--sample-scores (docs/samples.md)."
        )
    first = pydatasets._first(adapter)[0]
    specs, structure = tf.nest.flatten(adapter._output_signature), adapter._output_signature
    size = len(tf.nest.flatten(first)[0])
    last = len(tf.nest.flatten(adapter._standardize_batch(data[data.num_batches - 1]))[0])
    pruning.over([(data.num_batches - 1) * size + last], 0, size, size * ranks)

    def codes_of(place: int) -> np.ndarray:
        return pruning.codes()[place * size : (place + 1) * size]

    mine = _All(adapter, lambda place: bool((codes_of(place) != scoring.LEFT_OUT).any()))
    mine.give_to(enqueuer)

    def walk() -> Iterator[Any]:
        mine.begin(enqueuer)
        held: list[list[np.ndarray]] = []
        for place, batch in zip(list(mine.places), mine.batches(enqueuer), strict=False):
            there = np.flatnonzero(codes_of(place) != scoring.LEFT_OUT)
            tags = array_tags.used(place * size + there, pruning.codes())
            leaves = [np.asarray(leaf)[there] for leaf in flat(adapter._standardize_batch(batch), specs)]
            held.append([tags, *leaves])
            if sum(len(one[0]) for one in held) >= size:
                joined = [np.concatenate(parts) for parts in zip(*held, strict=True)]
                yield packed([part[:size] for part in joined])
                held = [[part[size:] for part in joined]]
        if held and sum(len(one[0]) for one in held):
            yield packed([np.concatenate(parts) for parts in zip(*held, strict=True)])

    def packed(parts: list[np.ndarray]) -> TaggedRows:
        return TaggedRows(parts[0], tf.nest.pack_sequence_as(structure, parts[1:]))

    open_rows = tf.nest.map_structure(row_slicing.any_rows, structure)
    made = tf.data.Dataset.from_generator(walk, output_signature=TaggedRows(tf.TensorSpec([None], tf.int64), open_rows))
    world.current().barrier("number the rows of the data", [f"{data.num_batches} batches of {size} rows"])
    options = tf.data.Options()
    options.autotune.enabled = False
    return made.with_options(options)
