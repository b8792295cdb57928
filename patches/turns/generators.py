"""A Python generator that is given to Keras: run by every rank, or with `--generators node` by the first of each node.

Keras lets tf.data read ahead of the training by as many batches as it likes. Where a pipeline over the same generator
is left and begun anew, as that of each validation is, those are lost, and on other ranks others. Here every rank reads
ahead by as many.

Relies on (Keras 3.3 to 3.15, private): `GeneratorDataAdapter.get_tf_dataset`, its `generator`, `_first_batches` and
`_output_signature`; `data_adapter_utils.get_tensor_spec`.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.patches.common import log_once, run_state
from matex_tf.patches.data import batch_ownership
from matex_tf.patches.turns import in_turn
from matex_tf.patches.turns.in_turn import FirstOfNode, Turns, flat

#: By how many batches a rank reads ahead.
_AHEAD = 2


def pipeline(adapter: Any, original: Callable[[], Any], what: str) -> Any:
    """What `get_tf_dataset` gives: a pipeline of `LocalBatch` where one rank runs the generator. All ranks come here.

    Args:
        adapter: a GeneratorDataAdapter.
        original: its own `get_tf_dataset`.
        what: whose data these are: "fit", "evaluate" or "predict"; "" where every rank has to run it.
    """
    dataset = _of_node(adapter, what) if what and settings.current().generators == "node" else None
    if dataset is None:
        if not isinstance(getattr(adapter.generator, "__self__", None), ReadAhead):
            adapter.generator = ReadAhead(adapter.generator).walk
        dataset = original()
    return in_turn.as_fast_as_asked(dataset)


def _of_node(adapter: Any, what: str) -> Any:
    """The pipeline of rows that the first rank of the node makes; None where every rank has to run the generator."""
    from keras.src.trainers.data_adapters import data_adapter_utils

    chosen, ranks = settings.current(), world.current()
    structure = data_adapter_utils.get_tensor_spec(adapter._first_batches)
    specs = tf.nest.flatten(structure)
    why = ""
    if chosen.batch == "per-rank" or chosen.rows == "own" or ranks.holds_shard:
        why = "each rank has rows or batches of its own"
    elif ranks.guard is not None:
        why = "a rank that dies (--faults shrink) would take its batches with it"
    elif chosen.reproducible:
        why = "the parts of virtual ranks are cut of whole batches (--reproducible)"
    elif not all(isinstance(spec, tf.TensorSpec) for spec in specs):
        why = "its batches have other parts than tensors"
    if any(ranks.allgather(why, "run a generator once a node")):
        if what == "fit":
            log_once.log(f"every rank runs the generator, and keeps its rows (--generators rank): {why}")
        return None
    if chosen.rows == "auto":
        tensors = [tf.convert_to_tensor(array) for array in flat(adapter._first_batches[0], specs)]
        first = tf.nest.pack_sequence_as(structure, tensors)
        finding = batch_ownership.look(first, batch_ownership.UNKNOWN, f"compare rows of the data of {what}")
        if finding.own or (finding.differs and len(ranks.nodes) > 1):  # a line says so when they are fetched
            return None
    if what == "fit":
        log_once.log(
            "the first rank of each node runs the generator, and the others get their rows (--generators node)"
        )

    def own() -> Iterator[list[np.ndarray]]:
        return (flat(batch, specs) for batch in adapter.generator())

    nbytes = max(sum(array.nbytes for array in flat(batch, specs)) for batch in adapter._first_batches)
    turns = Turns(own, FirstOfNode(), nbytes)
    return tf.data.Dataset.from_generator(
        lambda: in_turn.local_batches(turns, structure), output_signature=in_turn.signature(structure)
    )


class ReadAhead:
    """A generator that a thread reads, by `_AHEAD` batches more than were asked for when a walk over it ends."""

    def __init__(self, generator: Callable[[], Iterator[Any]]):
        """Args: generator: begins a walk; what it has read in the one before is gone."""
        self._generator = generator
        self._walk: _Walk | None = None
        run_state.current().part(in_turn.Open).turns.append(self)

    def walk(self) -> Iterator[Any]:
        """The batches of a new walk, which begins when no thread runs the generator any more."""
        if self._walk is not None:
            self._walk.close()
        self._walk = _Walk(self._generator())
        return iter(self._walk)

    def close(self) -> None:
        """End the walk, when what may be read has been. What the script's code waits for may never come."""
        if self._walk is not None:
            self._walk.close(in_turn.PATIENCE)

    def abandon(self) -> None:
        """End it at once."""
        if self._walk is not None:
            self._walk.abandon()


class _Walk:
    def __init__(self, batches: Iterator[Any]):
        self._batches = batches
        self._read: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._allowed, self._left, self._abandoned = _AHEAD, False, False
        self._thread = threading.Thread(target=self._work, name="matex_tf generator", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._allowed += 1
                self._changed.notify_all()
            batch, error = self._read.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield batch

    def close(self, seconds: float | None = None) -> None:
        with self._changed:
            self._left = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def abandon(self) -> None:
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def _may(self, number: int) -> bool:
        """Wait until a batch may be read; False where it never will be."""
        with self._changed:
            self._changed.wait_for(lambda: number < self._allowed or self._left or self._abandoned)
            return number < self._allowed and not self._abandoned

    def _work(self) -> None:
        for number in itertools.count():
            if not self._may(number):
                return
            try:
                self._read.put((next(self._batches), None))
            except BaseException as error:  # which the thread that walks shall raise
                self._read.put((None, error))
                return
