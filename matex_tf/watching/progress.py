"""The progress line: what a person asks of a training, on a terminal or in a log."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from matex_tf.watching.job_state import JobState
from matex_tf.watching.meter import Meter

#: Seconds from one line of a log to the next.
LOG_SECONDS = 10.0

_ERASE = "\r\x1b[K"


def text(job: dict[str, Any]) -> str:
    """The line of a job, see `JobState.public`; empty if nothing trains. It has no speeds until they are known."""
    if not job["phase"] or not job["step"]:
        return ""
    known = job["steps_per_second"] > 0
    parts = []
    if job["epoch"]:
        parts.append(f"epoch {job['epoch']}/{job['epochs']}")
        known_end = 0 < job["of_epoch"] >= job["in_epoch"]  # groups may take more steps than in the epoch before
        parts.append(f"step {job['in_epoch']}" + (f"/{job['of_epoch']}" if known_end else ""))
    else:
        parts.append(f"step {job['step']}")
    if job["seconds_left"] is not None:
        parts.append(f"{duration(job['seconds_left'])} left")
    parts.append(f"{job['alive']}/{job['size']} ranks")
    if known:
        parts.append(f"{_rate(job['steps_per_second'])} steps/s")
        parts.append(f"{_rate(job['rows_per_second'])} rows/s")
        parts.append(
            f"exchange {job['exchange']:.0%}, input {job['input']:.0%}"
        )  # a narrow terminal has no room for it
    return ", ".join(parts)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss, or m:ss."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


class Progress:
    """Writes the line, again and again.

    Attributes:
        columns: of the terminal; 0 for a log.
    """

    def __init__(self, descriptor: int, columns: int, always: bool):
        """Args: descriptor: a file that it is written to; always: also beside a progress bar of Keras' own."""
        self._descriptor = descriptor
        self.columns = columns
        self._always = always
        self._last = time.monotonic()
        self._drawn = self._timed = False
        self._lock = threading.Lock()

    def show(self, job: JobState, meter: Meter) -> None:
        """Write the line, where it is time for one.

        Args:
            job: how far it is.
            meter: of this rank: says whether it trains, and whether Keras draws a progress bar.
        """
        live = self.columns > 0 and meter.phase == "train" and not meter.bar
        if self.columns and meter.bar and not self._always:
            return
        if not live and time.monotonic() - self._last < LOG_SECONDS:
            return
        known = job.public()
        self._timed |= known["steps_per_second"] > 0
        line = text(known)
        if not line or not (live or self._timed):  # a log has no line before there is a speed to show
            return
        self._last = time.monotonic()
        with self._lock:
            # What the script prints next begins where this line does.
            self._write(f"{_ERASE}{line[: self.columns - 1]}\r" if live else f"matex_tf: {line}\n")
            self._drawn = live

    def erase(self) -> None:
        """Make room for what is printed now."""
        with self._lock:
            if self._drawn:
                self._write(_ERASE)
                self._drawn = False

    def _write(self, text: str) -> None:
        os.write(self._descriptor, text.encode())
