"""What is under way in this process: the one object in which a step's patches find what their callers know.

Keras and TensorFlow call what is patched, and hand nothing of ours along. So whoever begins a piece of work, such as
a step, a trace or an update, says so with `having`, and whoever is called in the course of it asks `now`. An `UnderWay`
is never changed: a block of `having` has another one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


@dataclasses.dataclass(frozen=True)
class UnderWay:
    """What is under way.

    Attributes:
        in_step: whether a step that shares out its batch runs or is traced, or a call within one that hides that.
        share: the part of the batch that such a step works on; None where it has the rows of the whole batch.
        drawing: the part of a batch in a call that shares out rows, and of which only random draws need to know.
        draws_apart: whether random numbers are drawn that have nothing to do with rows.
        in_keras: whether a loop of Keras is at work, callbacks included: it shares out its batches by itself.
        making_batches: whether the script's code is called to make a batch, in the thread that trains.
        apart: whether this thread does what it does as on one rank, with nothing of the other ranks.
        exchanged: whether the gradients that an optimizer gets have been exchanged already.
        gradient_names: of the gradients that an optimizer is about to clip: Keras hands on gradients alone.
        rows_on_one_rank: for tensors that a step takes from its batch, by id: the tensor, and its rows on one rank.
        first_rows: the rows of the batch with which one rank has traced the step first; None if it was with any number.
        counts_as: the weight of the batch in the mean of an output's loss, see `keras/output_losses.py`.
        metrics: those of which a method runs.
        epochs_of: the call of `fit` or `predict` that has yet to make the iterator of its data.
        epochs_asked: the iterator of epochs that is being made, if its batches are shared out.
        orders: what gives the pipeline of arrays that is being made the order of each epoch; None: TensorFlow draws it.
        one_rank: the trace of a compiled function that is made as one rank makes it.
    """

    in_step: bool = False
    share: Any = None  # a `batch_share.StepShare`, as the next; whose module asks this one
    drawing: Any = None
    draws_apart: bool = False
    in_keras: bool = False
    making_batches: bool = False
    apart: bool = False
    exchanged: bool = False
    gradient_names: Sequence[str] | None = None
    rows_on_one_rank: Mapping[int, tuple[Any, int]] = dataclasses.field(default_factory=dict)
    first_rows: int | None = None
    counts_as: Any = None
    metrics: tuple[Any, ...] = ()
    epochs_of: EpochsOf | None = None
    epochs_asked: EpochsAsked | None = None
    orders: Any = None
    one_rank: Any = None


@dataclasses.dataclass
class EpochsOf:
    """A call of `fit` or `predict`; the first iterator of epochs that is made in it is that of its own data.

    Attributes:
        kind: "fit" or "predict".
        model: the model.
        pending: whether that iterator has yet to be made.
    """

    kind: str
    model: Any
    pending: bool = True


class EpochsAsked(NamedTuple):
    """An iterator of epochs.

    Attributes:
        training: whether it is for training.
        arguments: what Keras makes it with.
        purpose: "fit", "evaluate" or "predict".
        choice: a `RowChoice`, which says which rows an epoch uses; None: all.
    """

    training: bool
    arguments: dict[str, Any]
    purpose: str
    choice: Any = None


def making_epochs(kind: str, model: Any) -> contextlib.AbstractContextManager[None]:
    """In this context a call of `kind`, "fit" or "predict", of a `model` makes the iterator of its data."""
    return having(epochs_of=EpochsOf(kind, model))


def pending(kind: str) -> Any:
    """The model whose call of this kind makes the iterator of its data now; None where none does."""
    call = now().epochs_of
    if call is None or call.kind != kind or not call.pending:
        return None
    call.pending = False
    return call.model


_NOTHING = UnderWay()
#: By thread, what is under way there, the innermost last. TensorFlow runs replicas and Python functions of a graph in
#: threads of its own: one that has begun nothing by itself takes part in what the others do.
_by_thread: dict[int, list[UnderWay]] = {}


def now() -> UnderWay:
    """What is under way in this thread; in one that has begun nothing, what the last thread that did is at.

    A thread that is `apart` does nothing in which others could take part.
    """
    own = of_this_thread()
    if own is not None:
        return own
    for others in reversed(list(_by_thread.values())):
        if others and not others[-1].apart:
            return others[-1]
    return _NOTHING


def of_this_thread() -> UnderWay | None:
    """What this thread has begun itself; None where that is nothing."""
    own = _by_thread.get(threading.get_ident())
    return own[-1] if own else None


def in_keras_anywhere() -> bool:
    """Whether a loop of Keras is at work in any thread."""
    return any(one.in_keras for own in list(_by_thread.values()) for one in list(own))


@contextlib.contextmanager
def having(**changes: Any) -> Iterator[None]:
    """Let these attributes of `now()` be others inside a `with` block."""
    changed = dataclasses.replace(now(), **changes)
    thread = threading.get_ident()
    own = _by_thread.setdefault(thread, [])
    own.append(changed)
    try:
        yield
    finally:
        own.pop()
        if not own:
            _by_thread.pop(thread, None)


def apart() -> contextlib.AbstractContextManager[None]:
    """Do what is called inside a `with` block, in this thread, as on one rank: no patch of `wrapping` is in its way."""
    return having(**vars(UnderWay(in_keras=True, apart=True)))


def is_apart() -> bool:
    """Whether this thread is in such a block."""
    own = of_this_thread()
    return own is not None and own.apart
