"""Loops of the script's own to which ranks can come (`matex-tf join`), where all that trains is in compiled steps.

Every rank keeps what such steps have returned, see `call_log`, and what the script has read of the variables that they
change. A rank that comes runs the script alone up to where the job is: it traces the steps, and does not compute them,
but gives the script what they have returned in the job. So Python's own state (numbers of epochs, iterators, lists of
losses) comes to the same place. There it takes the values of all variables that the steps may change from the first
rank, and goes on as one of the ranks. What would depend on these values before in other ways than by reading them is
seen, and the rank does not come; see `side_reads`.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from matex_tf.core import world
from matex_tf.core.mismatch import checksum
from matex_tf.errors import Refused
from matex_tf.features.join.patches import growing_fit
from matex_tf.features.join.patches.call_log import CallLog
from matex_tf.features.join.patches.side_reads import SideReads
from matex_tf.patches.recovery import resume_fit
from matex_tf.patches.recovery.checkpoint_timer import Due
from matex_tf.state import notes
from matex_tf.storage import plain_encoder

#: Seconds since the last answer of the job within which a rank that comes says that it is ready.
_CLOSE = 1.0
#: A rank comes nearer to the job if it needs less than this part of the time for what the job has done meanwhile; how
#: often in a row it need not.
_SLOW, _ROUNDS = 0.9, 3
#: In the log, the number of reads, among those of steps.
_READ = -1


class Step(Protocol):
    """A compiled step: a trace of a function of the script's."""

    @property
    def name(self) -> str:
        """Of the function."""

    @property
    def obstacle(self) -> str:
        """What it does that depends on more than variables and what it gets, in words; else empty."""

    @property
    def version(self) -> int:
        """Another one once `changed` may give more."""

    def changed(self) -> list[tuple[Any, Any, str]]:
        """The variables that it may change: handle, dtype and name of each, in the same order on every rank."""


class _Known:
    """Of a step: what is known of it, also when the script has done with it.

    Attributes:
        number: which one of the script it is, in the order of their first calls.
        changed: what it may change, see `Step`; of handles weak references.
    """

    def __init__(self, number: int):
        self.number, self._version = number, -1
        self.changed: list[tuple[weakref.ref[Any], Any, str]] = []

    def update(self, step: Step) -> None:
        """There may be more that it changes."""
        if step.version != self._version:
            self._version = step.version
            self.changed = [(weakref.ref(handle), dtype, name) for handle, dtype, name in step.changed()]

    @property
    def alive(self) -> list[tuple[Any, Any, str]]:
        """As `Step.changed` has it, with None for the handle of a variable that is gone."""
        return [(handle(), dtype, name) for handle, dtype, name in self.changed]


class Loops:
    """The compiled steps of the script, and their calls.

    Attributes:
        calls: how many there were, and reads of what they change.
    """

    def __init__(self) -> None:
        self.calls, self._log = 0, CallLog()
        self._steps: list[_Known] = []
        self._run_steps = 0
        self._obstacle = ""
        self._reads = SideReads(self._read, self._tell_of_read)
        self._answered, self._round, self._slow = 0.0, 0.0, 0
        self._taken: tuple[dict[str, Any], dict[str, Any]] | None = None

    def call(
        self,
        step: Step,
        given: Sequence[Any],
        compute: Callable[[], Sequence[Any]],
        elsewhere: Callable[[], str],
        together: bool,
    ) -> Sequence[Any]:
        """One call of a step.

        Args:
            step: the step.
            given: the tensors of its batch.
            compute: what gives its outputs, flat.
            elsewhere: says what trains besides compiled steps; empty for nothing.
            together: whether all ranks make this call, so that one may come in it.
        """
        known = notes.of(step, _Known, lambda: self._add(step))
        known.update(step)
        replays = self._replays()
        self._reads.watch([(handle, name) for handle, _, name in known.alive if handle is not None], strict=replays)
        recorded = None
        if replays:
            recorded = self._recorded(step, known, given, elsewhere)
        elif world.current().arrival is None and together:
            self._meet(given, elsewhere)
        outputs = compute() if recorded is None else recorded
        if recorded is None:
            self._log.add(known.number, outputs)
        self.calls += 1
        self._run_steps += 1
        return outputs

    def _read(self, compute: Callable[[], Any]) -> Any:
        """What the script reads of a variable that steps change. Args: compute: what reads it."""
        if self._replays():
            outputs = self._next(_READ, "its script reads a variable")
            if outputs is None:
                raise Refused("its script reads a variable, and that of the job calls a compiled step")
            value = outputs[0]
        else:
            value = compute()
            self._log.add(_READ, [value])
        self.calls += 1
        return value

    def _add(self, step: Step) -> _Known:
        self._steps.append(_Known(len(self._steps)))
        self._obstacle = self._obstacle or (f"{step.name} {step.obstacle}" if step.obstacle else "")
        return self._steps[-1]

    def trusted(self) -> contextlib.AbstractContextManager[None]:
        """What is done inside a `with` block depends on the value of no variable."""
        return self._reads.trusted()

    # On the ranks of the job.

    def _meet(self, given: Sequence[Any], elsewhere: Callable[[], str]) -> None:
        """Before a call: let a rank come that waits, and ranks leave that were told to."""
        ranks, begun = world.current(), time.perf_counter()
        known = resume_fit.fits()
        clock = growing_fit.questions(known)
        ranks.growth.returned = lambda calls: plain_encoder.dumps(self._log.since(calls))
        ranks.growth.at(known.count + 0.5, (0, self.calls))
        store: Any = None
        if clock.due(False, store) is Due.NOTHING or growing_fit.go_without_leaving(clock):
            return
        one = None
        if ranks.rank == 0 and (waiting := ranks.growth.ready) is not None:
            words = {
                "calls": self.calls,
                "given": _marks(given),
                "compared": dict(ranks.compared),
                **growing_fit.of_the_run(),
            }
            calls = waiting.calls
            one = ranks.growth.hand_over(
                elsewhere() or self._obstacle or self._log.why_not, words, lambda: self._state(calls)
            )
        growing_fit.let_in(one, f"step {self._run_steps + 1} of a loop of its own", begun)

    def _state(self, calls: int) -> bytes:
        values = [
            [None if handle is None else np.array(_read(handle, dtype)) for handle, dtype, _ in known.alive]
            for known in self._steps
        ]
        return plain_encoder.dumps({"returned": self._log.since(calls), "values": values})

    # On a rank that comes.

    def _replays(self) -> bool:
        """Whether what the script is given comes from the job: it is in this loop, and not in a fit behind it, up to
        which the script is run."""
        arrival, fits = world.current().arrival, resume_fit.fits()
        if arrival is None or not fits.replayed and arrival.has_begun(fits.count + 1):
            return False
        fits.replayed = True
        return True

    def _recorded(
        self, step: Step, own: _Known, given: Sequence[Any], elsewhere: Callable[[], str]
    ) -> list[Any] | None:
        """What a call has given in the job; None where it is to be computed, together with the job."""
        outputs = self._next(own.number, f"its script calls {step.name}")
        if outputs is None:
            self._enter(given, elsewhere)
        return outputs

    def _next(self, number: int, what: str) -> list[Any] | None:
        """What came next in the job; None where that has given what is needed to go on here.

        Args:
            number: of what comes next in the script, as the log has it. what: the same in words.

        Raises:
            Refused: something else came in the job.
        """
        while self.calls >= self._log.count:
            if self._taken is not None:
                return None
            self._ask(resume_fit.fits().count + 0.5)
        other, outputs = self._log.call(self.calls)
        if other != number:
            raise Refused(f"{what}, and the job does something else there")
        return [tf.constant(one) for one in outputs]

    def _ask(self, place: float) -> None:
        """Have the job tell what its steps have returned, or, where it is near, what it is given to go on with.

        Args:
            place: see `Growth.at`.
        """
        arrival = world.current().arrival
        took = time.monotonic() - self._answered if self._answered else 0.0
        self._slow = self._slow + 1 if took > max(_CLOSE, _SLOW * self._round) else 0
        if self._slow > _ROUNDS:
            raise Refused("its script takes as long between its steps as the job does, and comes no nearer to it")
        close, self._round = 0 < took < _CLOSE, took
        words, state = (arrival.take if close else arrival.where)(place, self.calls)
        said = plain_encoder.loads(state)
        self._answered = time.monotonic()
        if "calls" in words:
            self._taken = words, said
        self._log.extend(said["returned"] if "calls" in words else said)

    def _tell_of_read(self, name: str) -> None:
        world.of_job().arrival.refuse(
            f"its script uses the variable {name} between compiled steps, which has its value in the job alone "
            "(docs/growing.md)"
        )

    def _enter(self, given: Sequence[Any], elsewhere: Callable[[], str]) -> None:
        """Take what the job has given, and be one of its ranks."""
        assert self._taken is not None
        (words, state), self._taken = self._taken, None
        why = elsewhere() or self._obstacle or self._differs(words, given)
        with self._reads.trusted():
            why = why or self._take(state["values"])
        if why:
            raise Refused(why)
        growing_fit.questions(resume_fit.fits())
        growing_fit.enter(words)
        self._reads.relax()
        resume_fit.fits().replayed = False

    def _take(self, values: list[list[np.ndarray | None]]) -> str:
        """Let all variables that the steps may change have values; or why they are not theirs, in words."""
        mine = [known.alive for known in self._steps]
        if list(map(len, mine)) != list(map(len, values)):
            return "its compiled steps change other variables than in the job"
        pairs = list(zip(itertools.chain(*mine), itertools.chain(*values), strict=True))
        pairs = [(one, value) for one, value in pairs if one[0] is not None]  # with others the script has done
        for (handle, dtype, name), value in pairs:
            own = _read(handle, dtype)
            if value is None or tuple(own.shape) != value.shape or own.dtype != value.dtype:
                return f"{name}, which its compiled steps change, is another one in the job"
        for (handle, _, _), value in pairs:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        return ""

    def _differs(self, words: dict[str, Any], given: Sequence[Any]) -> str:
        if words["calls"] != self.calls or words["given"] != _marks(given):
            return f"call {self.calls + 1} of a compiled step gets other data than in the job"
        for what, mark in world.current().compared.items():
            if words["compared"].get(what, list(mark)) != list(mark):
                return f"it differs in {what.removeprefix('compare ')}"
        return ""


def _read(handle: Any, dtype: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _marks(tensors: Sequence[Any]) -> list[list[Any]]:
    """What tensors of numbers are told apart by."""
    plain = [np.asarray(one) for one in tensors if one.dtype not in (tf.resource, tf.variant)]
    return [[str(one.dtype), list(one.shape), checksum(one)] for one in plain]
