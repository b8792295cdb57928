"""A thread that does jobs one after the other, and outlives whatever goes wrong in one."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable

_LOOK_SECONDS = 0.5  # a thread that was ended from outside says nothing


class BackgroundWriter:
    """Does jobs in a thread, in their order.

    Args:
        failed: told of a job that failed, and why; in the thread.
    """

    def __init__(self, name: str, failed: Callable[[str, BaseException], None]):
        self._name, self._failed = name, failed
        self._changed = threading.Condition()
        self._jobs: collections.deque[tuple[str, Callable[[], None]]] = collections.deque()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is under way or waits."""
        return bool(self._jobs)

    def do(self, what: str, job: Callable[[], None]) -> None:
        """Have a job done.

        Args:
            what: it is; handed to `failed`.
        """
        with self._changed:
            self._jobs.append((what, job))
            self._changed.notify_all()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # there are as many threads as there can be
                self._thread = None
                self._jobs.clear()
                self._failed(what, error)

    def finish(self) -> None:
        """Wait until all jobs are done, or cannot be done any more."""
        with self._changed:
            while self._jobs and self._thread is not None and self._thread.is_alive():
                self._changed.wait(_LOOK_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    self._changed.wait()
                what, job = self._jobs[0]
            try:
                job()
            except BaseException as error:  # an OSError, a MemoryError, whatever: the next may fare better
                with contextlib.suppress(BaseException):  # no memory, or nowhere, to say it
                    self._failed(what, error)
            finally:
                del job
                with self._changed:
                    self._jobs.popleft()
                    self._changed.notify_all()
