"""A `PyDataset` of Keras (`Sequence`): each batch is made by one rank, in turn.

Only where `__getitem__` depends on its index alone, as far as can be seen: the first batches are made on every rank, as
Keras does to learn their shapes, and nothing that draws random numbers, and no number or word that the data set
holds, may have changed by that. Where `workers` make batches, they make those of their rank.

Relies on (Keras 3.3 to 3.15, private): `PyDatasetAdapter.get_tf_dataset`, its `py_dataset`, `shuffle`, `enqueuer`,
`_output_signature`, `_standardize_batch`, `_get_iterator` and `on_epoch_end`; (3.4 and later) `OrderedEnqueuer.start`,
`is_running`, `get`, `stop`, its `py_dataset` and `shuffle`; `data_adapter_utils.get_tensor_spec` and
`NUM_BATCHES_FOR_TENSOR_SPEC`.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.patches.common import log_once
from matex_tf.patches.sources import batch_ownership, decide
from matex_tf.patches.sources.decide import Price, Source
from matex_tf.patches.sources.reasons import NOTHING, Reason, Why
from matex_tf.patches.turns import data_threads, in_turn, read_ahead
from matex_tf.patches.turns.in_turn import Turns, flat
from matex_tf.patches.turns.reach import Reach
from matex_tf.patches.turns.read_ahead import Check, ReadAhead
from matex_tf.state import notes


def pipeline(adapter: Any, original: Callable[[], Any], what: str, steps: int) -> Any:
    """What `get_tf_dataset` gives: a pipeline of `LocalBatch` where batches are made in turn. All ranks come here.

    Args:
        adapter: a PyDatasetAdapter.
        original: its own `get_tf_dataset`.
        what: whose data these are: "fit", "evaluate" or "predict".
        steps: batches of an epoch, if it was asked for so many; else 0.
    """
    data = _Batches(adapter, steps)
    decision = decide.decide(data, what)
    size = world.current().size
    if decision.source is Source.WHOLE:
        if what == "fit":
            log_once.log(f"each rank makes every batch of the data, and keeps its rows (--data exact): {decision.why}")
        return _by_all(adapter, original, Price(decision.why))
    if what == "fit":
        log_once.log(f"each batch of the data is made by one rank, in turn among {size} (--data exact)")
    nbytes = sum(array.nbytes for array in data.first)
    return _in_turn(adapter, data.specs, nbytes, steps if _has_hooks(adapter.py_dataset) else 0)


class _Batches(decide.Data):
    """The batches of a PyDataset, as data to decide about.

    Attributes:
        source: see `decide.Data`.
        specs, first: of a batch, and the first of them as arrays, once `unfit` has made it.
    """

    source = Source.IN_TURN

    def __init__(self, adapter: Any, steps: int):
        self._adapter, self._steps = adapter, steps
        self.specs: list[tf.TensorSpec] = []
        self.first: list[np.ndarray] = []

    def unfit(self) -> Why:
        """See `decide.Data`: what is known of the data, and what making the first batches has changed."""
        why = self._unlike()
        if why:
            return why
        within = Reach(self._adapter.py_dataset) if settings.current().generators != "node" else None
        first = _first(self._adapter)[0]
        if within is not None and (why := within.why_every_rank("a batch")):
            return why
        self.specs = tf.nest.flatten(self._adapter._output_signature)
        if not all(isinstance(spec, tf.TensorSpec) and spec.dtype != tf.variant for spec in self.specs):
            return Reason.PARTS()
        self.first = flat(first, self.specs)
        return NOTHING

    def _unlike(self) -> Why:
        adapter, data = self._adapter, self._adapter.py_dataset
        if data.num_batches is None:
            return Reason.NO_LENGTH()
        if adapter._output_signature is not None:
            return Reason.WALKED()
        if not hasattr(adapter, "_get_iterator") or (data.workers > 1 and not hasattr(adapter.enqueuer, "py_dataset")):
            return Reason.OTHER_KERAS()
        return Reason.WORKERS() if adapter.enqueuer is not None and self._steps else NOTHING

    def count(self) -> int:
        """See `decide.Data`."""
        return int(self._adapter.py_dataset.num_batches)

    def compare(self, what: str) -> Why:
        """See `decide.Data`."""

        def first() -> Any:
            return tf.nest.pack_sequence_as(self._adapter._output_signature, [*map(tf.convert_to_tensor, self.first)])

        return decide.compared(first, batch_ownership.UNKNOWN, what)


def _has_hooks(data: Any) -> bool:
    """Whether a data set does something of its own between epochs."""
    import keras

    return any(
        getattr(type(data), name, None) is not getattr(keras.utils.PyDataset, name, None)
        for name in ("on_epoch_begin", "on_epoch_end")
    )


def _by_all(adapter: Any, original: Callable[[], Any], spent: Price) -> Any:
    """Each rank makes every batch, by one ahead as one rank does: what happens between epochs may change the next."""
    if adapter.enqueuer is not None or not hasattr(adapter, "_get_iterator"):
        return original()
    script = adapter._get_iterator
    notes.put(adapter, spent)
    adapter._get_iterator = ahead = ReadAhead(lambda: spent.timed(iter(script())), 1)
    _at_the_end_of_epochs(adapter, ahead.settle)
    return read_ahead.as_fast_as_asked(original())


def _at_the_end_of_epochs(adapter: Any, before: Callable[[], None]) -> None:
    ended = adapter.on_epoch_end

    def on_epoch_end() -> None:
        before()
        ended()

    adapter.on_epoch_end = on_epoch_end


def _first(adapter: Any) -> list[Any]:
    """The batches from which Keras learns the shapes; sets the signature as it does."""
    from keras.src.trainers.data_adapters import data_adapter_utils

    count = min(data_adapter_utils.NUM_BATCHES_FOR_TENSOR_SPEC, adapter.py_dataset.num_batches)
    with data_threads.make_batches():
        batches = [adapter._standardize_batch(adapter.py_dataset[number]) for number in range(count)]
    if not batches:
        raise ValueError("The PyDataset has length 0")
    adapter._output_signature = data_adapter_utils.get_tensor_spec(batches)
    return batches


def _in_turn(adapter: Any, specs: list[tf.TensorSpec], nbytes: int, steps: int) -> Any:
    data, enqueuer, trusted = adapter.py_dataset, adapter.enqueuer, settings.current().generators == "node"

    def own() -> Iterator[list[np.ndarray]]:
        mine.begin(enqueuer)
        return (flat(adapter._standardize_batch(batch), specs) for batch in mine.batches(enqueuer))

    turns = Turns(own, nbytes, type(data).__name__, steps, checks=not trusted)
    mine = MyTurns(adapter, turns.deal)
    mine.give_to(enqueuer)
    if not trusted:
        read_ahead.opened(Check(functools.partial(_last_look, data)))
    _at_the_end_of_epochs(adapter, turns.end_epoch)
    return read_ahead.as_fast_as_asked(in_turn.pipeline(turns.walk, adapter._output_signature))


def _last_look(data: Any) -> None:
    """Make one batch more when a call ends, of data that were looked at when it began: they may draw or count since.

    Raises:
        MatexError: making a batch changes something by now.
    """
    within, why = Reach(data), NOTHING
    with data_threads.make_batches(), contextlib.suppress(Exception):  # it need not give any after its last epoch
        data[0]
        why = within.why_every_rank("a batch")
    everyone = world.current().allgather(why, "look at the data of a call once more")
    if why := next(filter(None, everyone), NOTHING):
        raise MatexError(
            f"{type(data).__name__}: {why}. At the beginning nothing showed that, so each batch was made by "
            "one rank, and some were not those of one rank alone. Let every rank make every batch: --data whole."
        )


class MyTurns:
    """The batches that this rank makes, as a data set of its own for what makes them by threads or processes.

    Args:
        adapter: the PyDatasetAdapter of the script's data, which says whether an order is drawn for each walk.
        mine: begins a walk over so many batches, and gives the numbers of the rank's of it.
    """

    def __init__(self, adapter: Any, mine: Callable[[int], Iterable[int]]):
        self._adapter, self._data, self._mine = adapter, adapter.py_dataset, mine
        self._places: Sequence[int] = range(0)

    def give_to(self, enqueuer: Any) -> None:
        """Let the threads or processes of Keras make these batches, if there are any; a walk begins when they start."""
        if enqueuer is None:
            return
        enqueuer.py_dataset, enqueuer.shuffle = self, False
        start_all = enqueuer.start

        def start(*epoch: int) -> None:
            if not enqueuer.is_running():
                self.draw()
            start_all(*epoch)

        enqueuer.start = start

    def begin(self, enqueuer: Any) -> None:
        """Begin a walk, by these threads or processes or, with None, without."""
        if enqueuer is None:
            self.draw()
        else:
            enqueuer.start(*self._epoch())

    def draw(self) -> None:
        """Take the batches of a walk."""
        places = self.order()
        self._places = [places[number] for number in self._mine(len(places))]

    def order(self) -> list[int]:
        """The numbers of all batches, in the order that Keras draws: from 3.16 on by the number of the epoch alone."""
        places = list(range(self._data.num_batches))
        if self._adapter.shuffle:
            epoch = self._epoch()
            (random.Random(*epoch) if epoch else random).shuffle(places)
        return places

    def _epoch(self) -> tuple[int, ...]:
        return (self._adapter._epoch,) if hasattr(self._adapter, "_epoch") else ()

    @property
    def num_batches(self) -> int:
        """How many there are in this walk."""
        return len(self._places)

    def __getitem__(self, number: int) -> Any:
        return self._data[self._places[number]]

    def batches(self, enqueuer: Any) -> Iterator[Any]:
        """All of this walk."""
        if not self._places:
            return
        if enqueuer is None:
            for place in self._places:
                yield self._data[place]
            return
        for number, batch in enumerate(enqueuer.get()):
            yield batch
            if number >= self.num_batches - 1:
                enqueuer.stop()
                return
