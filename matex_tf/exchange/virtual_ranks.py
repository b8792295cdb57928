"""Virtual ranks: what a step does for each part of the batch, in a thread each, of which one runs at a time.

With `--reproducible P` a batch has P parts whatever the number of ranks, and a rank has some of them (EasyScale,
SC'23). A step is traced, or run eagerly, once for each of its parts. Where the parts meet (a sum over ranks, the update
of the weights) a thread stops, and the next one goes on. Once all have come the thread of the step does for all of them
what they have met for, and each goes on with its result. `tf.distribute` traces its replicas in the same way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import tensorflow as tf

from matex_tf.errors import MatexError
from matex_tf.state import run_state

_Result = TypeVar("_Result")

#: What the parts have met for: from what each has given to what each gets.
Together = Callable[[list[Any]], Any]


class _Current(threading.local):
    """Of a run: the part of a step that runs in this thread."""

    part: _Part | None = None


class _Stopped(BaseException):
    """Another part has failed: this one ends."""


@dataclasses.dataclass
class _Meeting:
    what: Hashable
    given: Any
    together: Together


class Switch:
    """What is told of the parts that take turns, by their place among those of this rank."""

    def enter(self, place: int) -> None:
        """A part is about to go on."""

    def leave(self, place: int) -> None:
        """It has stopped, or ended."""


class Parts:
    """The parts of one step on this rank."""

    def __init__(self, count: int, switch: Switch, inside: Callable[[], contextlib.AbstractContextManager[Any]]):
        """Args:
        count: how many there are.
        switch: told where parts take turns, in the thread of the step.
        inside: what the thread of a part is in.
        """
        self._count = count
        self._switch = switch
        self._inside = inside

    def run(self, work: Callable[[int], _Result]) -> list[_Result]:
        """Do the work of all parts.

        Args:
            work: from the place of a part to its result.

        Raises:
            MatexError: the parts meet for different things.
            Exception: what the work of a part has raised.
        """
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        last = self._count - 1
        parts = [_Part(place, place == last, graph, self._inside, work) for place in range(self._count)]
        for part in parts:
            part.start()
        try:
            results: list[Any] = [None] * len(parts)
            while True:
                said = [self._turn(part, result) for part, result in zip(parts, results, strict=True)]
                meetings = [one for one in said if isinstance(one, _Meeting)]
                if not meetings:
                    return [part.result for part in parts]
                if len({one.what for one in meetings}) > 1 or len(meetings) < len(parts):
                    raise MatexError(
                        f"--reproducible: the parts of a batch do different things in one step ({meetings[0].what!r} "
                        "is not done for all of them): what a step does must not depend on the rows that it has."
                    )
                results = [meetings[0].together([one.given for one in meetings])] * len(parts)
        finally:
            for part in parts:
                part.stop()

    def _turn(self, part: _Part[Any], result: Any) -> _Meeting | None:
        self._switch.enter(part.place)
        said = part.go_on(result)
        self._switch.leave(part.place)
        return said


class _Part(threading.Thread, Generic[_Result]):
    """The thread of one part.

    Attributes:
        place, is_last: among the parts of this rank.
        result: of its work.
    """

    def __init__(
        self,
        place: int,
        is_last: bool,
        graph: Any,
        inside: Callable[[], contextlib.AbstractContextManager[Any]],
        work: Callable[[int], _Result],
    ):
        super().__init__(name=f"part {place} of a step", daemon=True)
        self.place = place
        self.is_last = is_last
        self._graph = graph
        self._inside = inside
        self._work = work
        self._go: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._said: queue.SimpleQueue[_Meeting | BaseException | None] = queue.SimpleQueue()
        self.result: Any = None

    def run(self) -> None:
        said: BaseException | None = None
        try:
            self._wait()
            run_state.part(_Current).part = self
            with contextlib.ExitStack() as stack:
                if self._graph is not None:
                    stack.enter_context(self._graph.as_default())
                stack.enter_context(self._inside())
                self.result = tf.autograph.experimental.do_not_convert(self._work)(self.place)
        except _Stopped:
            return
        except BaseException as error:
            said = error
        self._said.put(said)

    def go_on(self, result: Any) -> _Meeting | None:
        """Let the part run until it meets the others, or ends. Called by the thread of the step."""
        self._go.put(result)
        said = self._said.get()
        if isinstance(said, BaseException):
            raise said
        return said

    def meet(self, meeting: _Meeting) -> Any:
        """Called in the part's own thread."""
        if self._graph is not None and tf.compat.v1.get_default_graph() is not self._graph:
            raise MatexError(
                f"--reproducible: a step comes to {meeting.what!r} in a tf.function, a loop or a branch of its own, "
                "where the parts of a batch cannot meet: do that in train_step itself."
            )
        self._said.put(meeting)
        return self._wait()

    def _wait(self) -> Any:
        result = self._go.get()
        if isinstance(result, _Stopped):
            raise result
        return result

    def stop(self) -> None:
        """End the thread, wherever it waits."""
        self._go.put(_Stopped())
        self.join()


def current() -> _Part[Any] | None:
    """The part that this thread works on; None where it works on none."""
    return run_state.part(_Current).part


def meet(what: Hashable, given: Any, together: Together) -> Any:
    """Meet the other parts of this rank.

    Args:
        what: the same for all parts.
        given: of this part.
        together: from what all parts have given, in their order, to what each gets; called in the thread of the step.
    """
    part = run_state.part(_Current).part
    assert part is not None
    return part.meet(_Meeting(what, given, together))
