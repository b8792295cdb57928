"""Who makes which rows of a batch, and why: the one decision about the data of a call or a loop.

`decide` asks in the same order for all data: how the job was started, what this rank sees of the data (`Data.unfit`),
what the others say, and whether the ranks have the same rows (`Data.compare`). What knows a kind of data is elsewhere:
`division.own_rows`, `turns.pydatasets`, `turns.generators`, `turns.from_generator`.
"""

from __future__ import annotations

import abc
import enum
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from matex_tf import settings, strategies
from matex_tf.core import world
from matex_tf.patches.sources import batch_ownership, pipeline_ownership, source_sharding
from matex_tf.patches.sources.pipeline_ownership import Made
from matex_tf.patches.sources.reasons import NOTHING, Reason, Why


class Source(enum.Enum):
    """Who makes the rows of a batch."""

    NUMBERS = "each rank gathers its rows by their numbers"
    DIVIDED = "each rank does the work on its rows"
    IN_TURN = "the ranks make batches in turn"
    NODE = "the first rank of each node makes them for the others"
    WHOLE = "every rank makes the batch, and keeps its rows"
    OWN = "each rank has rows of its own"


#: Sources that code of Python makes rows for, and those of rows that are there already.
_PYTHON, _THERE = (Source.IN_TURN, Source.NODE), (Source.NUMBERS, Source.OWN)


class Decision(NamedTuple):
    """Who makes rows, and why ranks do more of the work than their part."""

    source: Source
    why: Why = NOTHING


class Data(abc.ABC):
    """Data, as `decide` asks about them.

    Attributes:
        source: who makes their rows, unless something stands against it.
        differ: what it means if `count` differs between ranks.
    """

    source: Source
    differ: Reason = Reason.COUNTS_DIFFER

    @abc.abstractmethod
    def unfit(self) -> Why:
        """What stands against it, as far as this rank sees; may make the first batches."""

    def count(self) -> Any:
        """What has to be the same on every rank, once nothing stands against it."""
        return None

    def compare(self, what: str) -> Why:
        """What the rows say, if ranks compare some. All ranks come here. Args: what: whose data, in words."""
        return NOTHING


def decide(data: Data, what: str) -> Decision:
    """The decision about data that every rank has, the same on all ranks. All ranks come here.

    Args:
        what: whose data these are: "fit", "evaluate" or "predict"; "a loop".
    """
    mine = asked(data.source, what == "fit") or data.unfit()
    purpose = f"decide who makes the rows of the data of {what}"
    everyone = world.current().allgather((mine, None if mine else data.count()), purpose)
    why = next((one for one, _ in everyone if one), NOTHING)
    if not why and any(count != everyone[0][1] for _, count in everyone):
        why = data.differ()
    why = why or data.compare(what)
    return Decision(Source.WHOLE, why) if why else Decision(data.source)


def asked(source: Source, training: bool = False) -> Why:
    """What stands against a source in how the job was started; empty if nothing does.

    Args:
        training: whether the data are those that `fit` trains on.
    """
    chosen, ranks, python = settings.current(), world.current(), source in _PYTHON
    alone = training and strategies.current().apart
    if source in _THERE:
        return Reason.TRAIN_ALONE() if alone and source is Source.NUMBERS else NOTHING
    against = (
        (chosen.data == "whole", Reason.WHOLE_ASKED),
        (python and chosen.generators == "rank", Reason.EVERY_RANK_ASKED),
        (chosen.batch == "per-rank", Reason.PER_RANK),
        (python and (chosen.rows == "own" or ranks.holds_shard), Reason.OWN_ROWS),
        (chosen.reproducible, Reason.REPRODUCIBLE),
        (ranks.guard is not None, Reason.FAULTS),
        (alone, Reason.TRAIN_ALONE),
    )
    return next((reason() for holds, reason in against if holds), NOTHING)


def compared(first: Callable[[], Any], made: Made, what: str, one_has_the_say: bool = False) -> Why:
    """What the first batch says, if ranks compare it. All ranks come here.

    Args:
        first: gives the batch; None where this rank has none.
        made: what is known of where it came from.
        one_has_the_say: whether one rank's batches count, so that inputs may differ.
    """
    if settings.current().rows != "auto" or made.source is pipeline_ownership.Source.SAME:
        return NOTHING
    finding = batch_ownership.look(first(), made, f"compare rows of the data of {what}")
    apart = finding.own or (finding.differs and not one_has_the_say)
    return Reason.ROWS_DIFFER() if apart else NOTHING  # the first batch that is fetched says more


class Whose(NamedTuple):
    """Whether ranks have rows of their own, as far as can be known before any is read.

    Attributes:
        own: whether they have.
        uneven: whether they have other numbers of batches.
        mark: how the rows were dealt out: "shard" or "source"; None if they were not.
        made: what is known of the pipeline.
        batches: the most that a rank has; None if a rank does not know.
    """

    own: bool
    uneven: bool
    mark: Any
    made: Made
    batches: int | None


def whose(dataset: Any, given: Any, batches: int | None) -> Whose:
    """Whether the ranks have rows of their own. All ranks come here.

    Args:
        dataset: what is walked over.
        given: the tf.data pipeline that the script gave; None for other data.
        batches: how many this rank knows of.
    """
    chosen, mark, made = settings.current().rows, source_sharding.found(dataset), batch_ownership.UNKNOWN
    if not mark and given is not None and chosen != "shared":
        made = pipeline_ownership.look(given)
    counts = world.current().allgather(batches, "count the batches of the data")
    uneven = len(set(counts)) > 1
    own = bool(mark) or chosen == "own" or made.source is pipeline_ownership.Source.OWN or (uneven and chosen == "auto")
    return Whose(own, uneven, mark, made, None if None in counts else max(counts))


def first_of(rows: tf.data.Dataset) -> Any:
    """The first batch; None where there is none, or it cannot be read: the step that wants it says why."""
    try:
        return next(iter(rows), None)
    except tf.errors.OpError:
        return None


class Price:
    """What it takes to make batches of one data set that every rank makes, for a line.

    Attributes:
        why: why every rank makes its batches.
        seconds: of an epoch, spent on that since `begin`.
    """

    def __init__(self, why: Why):
        self.why, self.seconds = why, 0.0

    def begin(self) -> None:
        """An epoch begins."""
        self.seconds = 0.0

    def timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """These batches, while this takes note of what they take."""
        while True:
            begin = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.seconds += time.perf_counter() - begin
            yield batch
