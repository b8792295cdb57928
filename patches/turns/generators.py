"""A Python generator that is given to Keras: run by the first rank of each node, or by every rank.

With `--generators auto` the first of a node runs it where it leaves nothing that other code could see, as far as making
the first two batches shows (`reach`); Keras has every rank make these, to learn their shapes. A generator of which one
rank has run more than that is run by it from then on, and the others get the first batches of a further call too.

Keras lets tf.data read ahead of the training by as many batches as it likes. Where a pipeline over the same generator
is left and begun anew, as that of each validation is, those are lost, and on other ranks others. Here every rank reads
ahead by as many.

Relies on (Keras 3.3 to 3.15, private): `GeneratorDataAdapter.get_tf_dataset`, its `generator`, `_first_batches` and
`_output_signature`, and that its `__init__` makes the first two batches; `data_adapter_utils.get_tensor_spec`.
"""

from __future__ import annotations

import itertools
import queue
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.patches.common import carried_error, log_once, run_state
from matex_tf.patches.sources import batch_ownership, decide, price
from matex_tf.patches.sources.decide import Source
from matex_tf.patches.sources.price import Price
from matex_tf.patches.sources.reasons import NOTHING, Reason, Why
from matex_tf.patches.turns import data_threads, in_turn, reach
from matex_tf.patches.turns.in_turn import Turns, flat
from matex_tf.patches.turns.makers import FirstOfNode

#: By how many batches a rank reads ahead.
_AHEAD = 2


class _Known:
    """What is known of generators.

    Attributes:
        of_adapter: the generator of a GeneratorDataAdapter, and why every rank has to run it; empty if none has to.
        of_node: generators that the first rank of each node has run, and the others have not.
    """

    def __init__(self) -> None:
        self.of_adapter: weakref.WeakKeyDictionary[Any, tuple[Any, Why]] = weakref.WeakKeyDictionary()
        self.of_node: weakref.WeakSet[Any] = weakref.WeakSet()


def peek(original: Callable[[], None], adapter: Any, generator: Any) -> None:
    """Make an adapter, which takes the first batches of its generator. All ranks come here.

    Args:
        original: the `__init__` of the GeneratorDataAdapter.
        adapter: the GeneratorDataAdapter.
        generator: the script's.

    Raises:
        ValueError: as Keras raises it: the generator has ended, or yields no tuples.
    """
    known, why = run_state.current().part(_Known), NOTHING
    if not isinstance(generator, types.GeneratorType):
        return original()
    goes_on = generator in known.of_node
    judged = settings.current().generators == "auto" and not goes_on
    within = reach.of_generator(generator) if judged else None
    with data_threads.make_batches():
        _peek_of_first(original, adapter) if goes_on else original()
    if within is not None:
        why = within.why_every_rank("a batch")
    known.of_adapter[adapter] = generator, why
    return None


def _peek_of_first(original: Callable[[], None], adapter: Any) -> None:
    """The first batches are those of the first rank of the node, which alone knows how far the generator is."""
    ranks = world.current()
    first = ranks.nodes[ranks.node][0]
    found: Any = None
    raised: Exception | None = None
    if ranks.rank == first:
        try:
            original()
            found = adapter._first_batches
        except Exception as error:  # every rank raises it
            raised, found = error, carried_error.pack(error)
    found = ranks.allgather(found, "share the first batches of a generator")[first]
    if isinstance(found, bytes):
        raise raised or carried_error.unpack(found)
    if ranks.rank != first:
        adapter.generator, adapter._first_batches, adapter._output_signature = None, found, None


def pipeline(adapter: Any, original: Callable[[], Any], what: str) -> Any:
    """What `get_tf_dataset` gives: a pipeline of `LocalBatch` where one rank runs the generator. All ranks come here.

    Args:
        adapter: a GeneratorDataAdapter.
        original: its own `get_tf_dataset`.
        what: whose data these are: "fit", "evaluate" or "predict"; "" where every rank has to run it.

    Raises:
        MatexError: every rank has to run a generator that the first of the node has run so far.
    """
    dataset, why = _of_node(adapter, what) if what else (None, NOTHING)
    if dataset is None:
        known = run_state.current().part(_Known)
        generator, _ = known.of_adapter.get(adapter, (None, NOTHING))
        if generator is not None and generator in known.of_node:
            raise MatexError(
                "the first rank of each node has run this generator so far, and now every rank would have to continue "
                "with it. Give this call a generator of its own, or the job --generators rank."
            )
        if not isinstance(adapter.generator, ReadAhead):
            script, price.of[adapter] = adapter.generator, (spent := Price(why))
            adapter.generator = ReadAhead(lambda: spent.timed(_begin(script)))
        dataset = original()
    return in_turn.as_fast_as_asked(dataset)


def _of_node(adapter: Any, what: str) -> tuple[Any, Why]:
    """The pipeline of rows that the first rank of the node makes; None if every rank has to run it, and why."""
    batches, ranks = _Batches(adapter), world.current()
    decision = decide.decide(batches, what)
    asked = settings.current().generators
    if decision.source is Source.WHOLE:
        # Of rows that differ a line says more when they are fetched.
        if what == "fit" and asked != "rank" and decision.why != Reason.ROWS_DIFFER():
            log_once.log(f"every rank runs the generator, and keeps its rows (--generators {asked}): {decision.why}")
        return None, decision.why
    if what == "fit":
        log_once.log(
            f"the first rank of each node runs the generator, and the others get their rows (--generators {asked})"
        )
    run_state.current().part(_Known).of_node.add(batches.generator)
    structure, specs = batches.structure, batches.specs
    makers = FirstOfNode()

    def own() -> Iterator[list[np.ndarray]]:
        return (flat(batch, specs) for batch in (_begin(adapter.generator) if makers.first == ranks.rank else ()))

    nbytes = max(sum(array.nbytes for array in flat(batch, specs)) for batch in adapter._first_batches)
    turns = Turns(own, makers, nbytes)
    if asked != "node":
        run_state.current().part(in_turn.Open).turns.append(_SameDraws())
    rows = tf.data.Dataset.from_generator(
        lambda: in_turn.local_batches(turns, structure), output_signature=in_turn.signature(structure)
    )
    return rows, NOTHING


class _SameDraws:
    """The random generators of the process when a call ends: a generator that one rank runs has left them alone."""

    def __init__(self) -> None:
        self._before = reach.of_process()

    def close(self) -> None:
        """All ranks come here.

        Raises:
            MatexError: they differ between ranks, and did not.
        """
        mine = self._before, reach.of_process()
        before, now = zip(*world.current().allgather(mine, "compare what has been drawn"), strict=True)
        if len({*before}) == 1 and len({*now}) > 1:
            raise MatexError(
                f"{Reason.DRAWS(made='a batch')}. The first batches did not show that, so the first rank of each node "
                "alone ran the Python generator, and has drawn more than the others. Let every rank run it: "
                "--generators rank."
            )

    def abandon(self) -> None:
        """Nothing to end."""


class _Batches(decide.Data):
    """The batches of a generator, as data to decide about.

    Attributes:
        source: see `decide.Data`.
        generator: the script's; None if it gave something else.
        structure, specs: of a batch, and flat.
    """

    source = Source.NODE

    def __init__(self, adapter: Any):
        from keras.src.trainers.data_adapters import data_adapter_utils

        self._adapter = adapter
        self.structure = data_adapter_utils.get_tensor_spec(adapter._first_batches)
        self.specs = tf.nest.flatten(self.structure)
        known = run_state.current().part(_Known).of_adapter
        self.generator, self._why = known.get(adapter, (None, Reason.ITERATOR()))

    def unfit(self) -> Why:
        """See `decide.Data`."""
        tensors = all(isinstance(spec, tf.TensorSpec) for spec in self.specs)
        return self._why if tensors else Reason.PARTS()

    def compare(self, what: str) -> Why:
        """See `decide.Data`: what one rank has run alone is not on the others."""
        if self.generator in run_state.current().part(_Known).of_node:
            return NOTHING

        def first() -> Any:
            tensors = [tf.convert_to_tensor(array) for array in flat(self._adapter._first_batches[0], self.specs)]
            return tf.nest.pack_sequence_as(self.structure, tensors)

        one_node = len(world.current().nodes) == 1
        return decide.compared(first, batch_ownership.UNKNOWN, what, one_has_the_say=one_node)


def _begin(generator: Any) -> Iterator[Any]:
    """Begin a walk over what an adapter reads: a function gives the batches, or with Keras 3.3 an iterator."""
    return generator() if callable(generator) else iter(generator)


class ReadAhead:
    """A generator that a thread reads, by a number of batches more than were asked for when a walk over it ends."""

    def __init__(self, generator: Any, ahead: int = _AHEAD):
        """Args: generator: what an adapter reads; what a walk has read that ends is gone. ahead: by how many."""
        self._generator, self._ahead = generator, ahead
        self._walk: _Walk | None = None
        run_state.current().part(in_turn.Open).turns.append(self)

    def __iter__(self) -> Iterator[Any]:
        """The batches of a new walk, which begins when no thread runs the generator any more."""
        if self._walk is not None:
            self._walk.close()
        self._walk = _Walk(_begin(self._generator), self._ahead)
        return iter(self._walk)

    __call__ = __iter__

    def settle(self) -> None:
        """Wait until what may be read has been."""
        if self._walk is not None:
            self._walk.settle()

    def close(self) -> None:
        """End the walk, when what may be read has been. What the script's code waits for may never come."""
        if self._walk is not None:
            self._walk.close(in_turn.PATIENCE)

    def abandon(self) -> None:
        """End it at once."""
        if self._walk is not None:
            self._walk.abandon()


class _Walk:
    def __init__(self, batches: Iterator[Any], ahead: int):
        self._batches = batches
        self._read: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._allowed, self._count, self._left, self._abandoned = ahead, 0, False, False
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

    def settle(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._count >= self._allowed or self._left or self._abandoned)

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
            batch, raised = None, None
            try:
                batch = next(self._batches)
            except BaseException as error:  # which the thread that walks shall raise
                raised = error
            self._read.put((batch, raised))
            with self._changed:
                self._count = number + 1
                self._left = self._left or raised is not None
                self._changed.notify_all()
            if raised is not None:
                return
