"""A timeline of the run, one track a rank, in the format of Chrome's trace viewer (and of ui.perfetto.dev).

What takes time is put in a `with span(name, what)` block. Off, such a block costs a call and nothing else.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from matex_tf.core.world import World
from matex_tf.errors import MatexError, SettingError
from matex_tf.storage import atomic_file

#: Spans that a rank keeps; those after that are left out.
MOST = 1_000_000
#: How the names of steps end in which exchanges cannot be told from the rest.
BY_XLA = "divided by XLA"

_nothing = contextlib.nullcontext()
#: Name, what, thread; begin and length in nanoseconds, and those in which the thread, and the process, were at work.
_Recorded = tuple[str, str, int, int, int, int, int]


class _Timeline:
    """The timeline of the process: a span begins wherever time is spent, in any thread, and costs next to nothing
    without a timeline.

    Attributes:
        spans: None: there is no timeline.
        zero: of its clock, which is the process' own.
        totals: seconds spent in spans of some names so far, see `add_up`; changed by who holds `adding`.
    """

    def __init__(self) -> None:
        self.spans: list[_Recorded] | None = None
        self.zero = 0
        self.totals: dict[str, float] = {}
        self.adding = threading.Lock()


_timeline = _Timeline()


class _Span:
    __slots__ = ("_name", "_what", "_begin", "_thread", "_process")

    def __init__(self, name: str, what: str):
        self._name, self._what = name, what

    def __enter__(self) -> None:
        self._thread, self._process = time.thread_time_ns(), time.process_time_ns()
        self._begin = time.monotonic_ns()

    def __exit__(self, *exception: object) -> None:
        if (spans := _timeline.spans) is not None and len(spans) < MOST:
            length = time.monotonic_ns() - self._begin
            work = time.thread_time_ns() - self._thread, time.process_time_ns() - self._process
            spans.append((self._name, self._what, threading.get_ident(), self._begin, length, *work))
            if self._name in _timeline.totals:
                _add(self._name, length)


class _Counted:
    """A span that is added up alone."""

    __slots__ = ("_name", "_begin")

    def __init__(self, name: str):
        self._name = name

    def __enter__(self) -> None:
        self._begin = time.monotonic_ns()

    def __exit__(self, *exception: object) -> None:
        _add(self._name, time.monotonic_ns() - self._begin)


def _add(name: str, nanoseconds: int) -> None:
    with _timeline.adding:
        _timeline.totals[name] += nanoseconds / 1e9


def add_up(*names: str) -> None:
    """Add up the time that is spent in spans of these names from now on, also without a timeline."""
    _timeline.totals.update(dict.fromkeys(names, 0.0))


def totals() -> dict[str, float]:
    """Seconds spent so far in spans of the names that are added up, all threads together."""
    return dict(_timeline.totals)


def span(name: str, what: str = "") -> Any:
    """A `with` block that stands in the timeline.

    Args:
        name: the kind of work: "pack", "wait", "reduce", "network", …
        what: what it is done to, such as a bucket.
    """
    if _timeline.spans is None:
        return _Counted(name) if name in _timeline.totals else _nothing
    return _Span(name, what)


def start(world: World, path: str) -> None:
    """Begin to record. Collective: the clocks of the nodes are set to the end of a meeting.

    Args:
        path: where the timeline is to be written at the end.

    Raises:
        SettingError: it cannot be written there; on every rank.
    """
    failure = ""
    if world.rank == 0:
        try:
            atomic_file.require(path, "--trace")
        except SettingError as error:
            failure = str(error)
    failure = world.broadcast(failure, "see where the timeline goes")
    if failure:
        raise SettingError(failure)
    world.barrier("start the timeline")
    zero = time.monotonic_ns()
    _timeline.spans = []
    # Ranks of a node have one clock, and its first rank's zero is as good as any.
    zeros = world.allgather((world.host, zero), "set the clocks of the timeline")
    _timeline.zero = next(zero for host, zero in zeros if host == world.host)


def write(world: World, path: str) -> None:
    """End the recording, and write what all ranks recorded to a file, on rank 0. Collective.

    Args:
        path: of the file, which is overwritten.

    Raises:
        MatexError: the file cannot be written; on every rank.
    """
    mine, _timeline.spans = _timeline.spans or [], None
    everyone = world.allgather(
        [(*span[:3], span[3] - _timeline.zero, *span[4:]) for span in mine], "gather the timeline"
    )
    failure = ""
    if world.rank == 0:
        try:
            atomic_file.put_json(path, {"traceEvents": _events(everyone, world.hosts), "displayTimeUnit": "ms"})
        except OSError as error:
            failure = f"the timeline cannot be written to {path}: {error.strerror}."
    failure = world.broadcast(failure, "end the timeline")
    if failure:
        raise MatexError(failure)


def _events(everyone: list[list[_Recorded]], hosts: list[str]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for rank, spans in enumerate(everyone):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank} {hosts[rank]}"}})
        threads = {ident: number for number, ident in enumerate(dict.fromkeys(span[2] for span in spans))}
        for name, what, thread, begin, length, own, all_threads in spans:
            event = {
                "ph": "X",
                "name": name,
                "pid": rank,
                "tid": threads[thread],
                "ts": begin / 1e3,
                "dur": length / 1e3,
                "tdur": own / 1e3,
            }
            details = {**({"what": what} if what else {}), **({"cpu": all_threads / 1e3} if name == "step" else {})}
            events.append({**event, "args": details} if details else event)
    return events
