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

import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.patches.common import carried_error, log_once
from matex_tf.patches.sources import batch_ownership, decide
from matex_tf.patches.sources.decide import Price, Source
from matex_tf.patches.sources.reasons import NOTHING, Reason, Why
from matex_tf.patches.turns import data_threads, in_turn, reach, read_ahead
from matex_tf.patches.turns.elements import Elements
from matex_tf.patches.turns.in_turn import flat
from matex_tf.patches.turns.read_ahead import Check, ReadAhead
from matex_tf.state import notes


@dataclasses.dataclass(frozen=True)
class _Peeked(notes.Inside):
    """Of a GeneratorDataAdapter: its generator, and why every rank has to run it; empty if none has to."""

    generator: Any
    why: Why


class _OfNode:
    """Of a generator: that the first rank of each node has run it, and the others have not."""


def peek(original: Callable[[], None], adapter: Any, generator: Any) -> None:
    """Make an adapter, which takes the first batches of its generator. All ranks come here.

    Args:
        original: the `__init__` of the GeneratorDataAdapter.
        adapter: the GeneratorDataAdapter.
        generator: the script's.

    Raises:
        ValueError: as Keras raises it: the generator has ended, or yields no tuples.
    """
    why = NOTHING
    if not isinstance(generator, types.GeneratorType):
        return original()
    goes_on = notes.has(generator, _OfNode)
    judged = settings.current().generators == "auto" and not goes_on
    within = reach.of_generator(generator) if judged else None
    with data_threads.make_batches():
        _peek_of_first(original, adapter) if goes_on else original()
    if within is not None:
        why = within.why_every_rank("a batch")
    notes.put(adapter, _Peeked(generator, why))
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
        peeked = notes.found(adapter, _Peeked)
        if peeked is not None and notes.has(peeked.generator, _OfNode):
            raise MatexError(
                "the first rank of each node has run this generator so far, and now every rank would have to continue "
                "with it. Give this call a generator of its own, or the job --generators rank."
            )
        if not isinstance(adapter.generator, ReadAhead):
            script = adapter.generator
            notes.put(adapter, spent := Price(why))
            adapter.generator = ReadAhead(lambda: spent.timed(_begin(script)))
        dataset = original()
    return read_ahead.as_fast_as_asked(dataset)


def _of_node(adapter: Any, what: str) -> tuple[Any, Why]:
    """The pipeline of rows that the first rank of the node makes; None if every rank has to run it, and why."""
    batches = _Batches(adapter)
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
    notes.put(batches.generator, _OfNode())
    parts = ReadAhead(batches.elements.walk)
    read_ahead.opened(batches.elements)
    if asked != "node":
        read_ahead.opened(Check(functools.partial(_compare_draws, reach.of_process())))
    return in_turn.pipeline(parts, batches.structure), NOTHING


def _compare_draws(before: int) -> None:
    """Compare the random generators of the process when a call ends: what one rank alone runs has left them alone.

    Raises:
        MatexError: they differ between ranks, and did not.
    """
    mine = before, reach.of_process()
    earlier, now = zip(*world.current().allgather(mine, "compare what has been drawn"), strict=True)
    if len({*earlier}) == 1 and len({*now}) > 1:
        raise MatexError(
            f"{Reason.DRAWS(made='a batch')}. The first batches did not show that, so the first rank of each node "
            "alone ran the Python generator, and has drawn more than the others. Let every rank run it: "
            "--generators rank."
        )


class _Batches(decide.Data):
    """The batches of a generator, as data to decide about.

    Attributes:
        source: see `decide.Data`.
        generator: the script's; None if it gave something else.
        structure, specs: of a batch, and flat.
        elements: the rows of ranks, if one rank makes them.
    """

    source = Source.NODE
    elements: Elements

    def __init__(self, adapter: Any):
        from keras.src.trainers.data_adapters import data_adapter_utils

        self._adapter = adapter
        self.structure = data_adapter_utils.get_tensor_spec(adapter._first_batches)
        self.specs = tf.nest.flatten(self.structure)
        known = notes.found(adapter, _Peeked)
        self.generator: Any = None if known is None else known.generator
        self._why = Reason.ITERATOR() if known is None else known.why

    def unfit(self) -> Why:
        """See `decide.Data`."""
        tensors = all(isinstance(spec, tf.TensorSpec) for spec in self.specs)
        return self._why if tensors else Reason.PARTS()

    def compare(self, what: str) -> Why:
        """See `decide.Data`: what one rank has run alone is not on the others."""

        def first() -> Any:
            tensors = [tf.convert_to_tensor(array) for array in flat(self._adapter._first_batches[0], self.specs)]
            return tf.nest.pack_sequence_as(self.structure, tensors)

        size, one_node = world.current().size, len(world.current().nodes) == 1
        known = notes.has(self.generator, _OfNode)
        if not known and (why := decide.compared(first, batch_ownership.UNKNOWN, what, one_has_the_say=one_node)):
            return why
        script = self._adapter.generator
        try:
            self.elements = Elements(
                lambda: _begin(script),
                may_run_again=False,
                of_rank=lambda batch, rank: in_turn.part_of(flat(batch, self.specs), rank, size),
            )
        except OSError as error:
            return Reason.NO_WAY(error=error)
        return NOTHING


def _begin(generator: Any) -> Iterator[Any]:
    """Begin a walk over what an adapter reads: a function gives the batches, or with Keras 3.3 an iterator."""
    return generator() if callable(generator) else iter(generator)
