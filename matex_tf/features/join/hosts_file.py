"""The file of `--hosts-file`, looked at while the job runs: where it changes, the first rank is told what it says."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType

from matex_tf.errors import MatexError, SettingError, harmless
from matex_tf.features.join import placement
from matex_tf.features.join.arrival import Line
from matex_tf.watching import registry

#: Seconds between two looks. What two of them in a row have found is taken for what somebody has meant.
_PAUSE = 1.0
_SECONDS_TO_ANSWER = 10.0
#: Seconds for which a job may not be found: it imports TensorFlow before it writes its job file.
_SECONDS_TO_FIND = 60.0


class HostsFile:
    """A file that is followed as long as a job runs; a context manager, for the launcher's main thread."""

    def __init__(
        self, path: str, hosts: str, read: Callable[[], str], job: str, watch_dir: str, say: Callable[[str], None]
    ):
        """Args:
        path: of the file.
        hosts: what it said at first, as `--hosts` has them.
        read: gives what it says now; raises `SettingError`.
        job: what names the job, see `core.sign.Sign.job`.
        watch_dir: the setting.
        say: prints a line for the user.
        """
        self._path, self._read, self._job, self._watch_dir, self._say = path, read, job, watch_dir, say
        self._marks: tuple[int, ...] = ()  # of the file, as it was read last
        self._found = self._taken = hosts
        self._wanted = placement.read(hosts, unsaid=1)
        self._failing_since, self._told = 0.0, (self._wanted, -1, "")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> HostsFile:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_SECONDS_TO_ANSWER)

    def _follow(self) -> None:
        changed = False
        while not self._over.wait(_PAUSE):
            changed = self._look() or changed
            if changed:
                self._tell()

    def _look(self) -> bool:
        """Whether the file says something else than it did, and has said so for a second."""
        before, failure = self._found, ""
        marks: tuple[int, ...] = ()
        with contextlib.suppress(OSError):
            there = os.stat(self._path)
            marks = (there.st_mtime_ns, there.st_size, there.st_ino)
        try:
            if not marks or marks != self._marks:
                self._found, self._marks = self._read(), marks
        except SettingError as error:
            self._found, self._marks, failure = "", (), str(error)
        if self._found != before or self._found == self._taken:
            return False
        self._taken = self._found
        if failure:
            self._say(f"{harmless(failure)} The job continues on the hosts that it has")
            return False
        slots = placement.read(self._found, unsaid=1)
        wanted = {**dict.fromkeys(self._wanted, 0), **slots}  # a host that is gone has room for none
        changed, self._wanted = wanted != self._wanted, wanted
        return changed

    def _tell(self) -> None:
        """Tell the first rank of the job, where it has not heard so yet."""
        entry = None
        try:
            entry = next((one for one in registry.entries(self._watch_dir) if one.run.get("of") == self._job), None)
            if entry is None:
                raise ConnectionError
            if (now := (self._wanted, entry.pid, entry.host)) != self._told:
                line = Line(registry.connect(entry))
                with contextlib.closing(line):
                    file = os.path.basename(self._path)
                    line.say({"token": entry.token, "ask": "hosts", "hosts": self._wanted, "file": file})
                    line.hear(_SECONDS_TO_ANSWER)
                self._told = now
            self._failing_since = 0.0
        except (OSError, ValueError, MatexError):
            self._failing_since = self._failing_since or time.monotonic()
            if 0 < self._failing_since < time.monotonic() - _SECONDS_TO_FIND:
                self._failing_since = float("inf")
                self._say(
                    f"{self._path} has changed, and the job cannot be told: it does not answer, or its --watch-dir is "
                    "not one that this host sees (docs/growing.md)"
                )
