"""What a rank counts while it trains: steps, rows, and where its time goes. Seconds add up from its start on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from matex_tf.core import trace
from matex_tf.core.world import World

#: Spans that count: an exchange as TensorFlow's ops see it, and in it the time in which other ranks are waited for.
EXCHANGE, WAIT = "op", "wait"

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Meter:
    """The counts of this process. Written by the thread that trains, read by the one that reports.

    Attributes:
        step: training steps so far.
        rows: rows of their batches, of all ranks together.
        input: seconds spent in waiting for batches.
        traced, traced_steps: seconds in which steps were traced, with their first run; the training steps among them.
        epoch, epochs: which one runs, from 1, and of how many; 0 outside of `fit`.
        in_epoch, of_epoch: steps of this epoch so far, and of how many; 0 where that is not known.
        epoch_begun: when it began, on the clock of `time.monotonic`.
        bar: whether Keras draws a progress bar of its own.
        phase: "train" within `fit`, "loop" in a loop of the script's own, else "".
    """

    def __init__(self) -> None:
        self.step = self.rows = 0
        self.input = self.traced = 0.0
        self.traced_steps = 0
        self.epoch = self.epochs = self.in_epoch = self.of_epoch = 0
        self.epoch_begun = 0.0
        self.bar = False
        self.phase = ""
        self._before_output: list[Callable[[], None]] = []

    def before_output(self, call: Callable[[], None]) -> None:
        """Have something called before Keras' callbacks print."""
        self._before_output.append(call)

    def make_room(self) -> None:
        """Keras' callbacks may print now."""
        for call in self._before_output:
            call()

    def begin_training(self, epochs: int, steps: int, bar: bool) -> None:
        """A `fit` begins. Args: steps: of an epoch, 0 where that is not known yet."""
        self.epochs, self.of_epoch, self.bar, self.phase = epochs, steps, bar, "train"

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins. Args: epoch: from 0, as Keras counts."""
        self.epoch, self.in_epoch, self.epoch_begun = epoch + 1, 0, time.monotonic()

    def end_epoch(self) -> None:
        """An epoch has ended: how long the next ones are is known."""
        self.of_epoch = self.of_epoch or self.in_epoch

    def end_training(self) -> None:
        """A `fit` has ended."""
        self.epoch = self.epochs = self.in_epoch = self.of_epoch = 0
        self.phase = ""

    def count(self, rows: int, phase: str = "") -> None:
        """A step begins, or has been made. Args: rows: of its batch, of all ranks together."""
        self.step += 1
        self.in_epoch += 1
        self.rows += rows
        self.phase = phase or self.phase

    def waited_for_input(self, seconds: float) -> None:
        """Time has gone by until a batch was there."""
        self.input += seconds

    def has_traced(self, seconds: float, steps: int) -> None:
        """A step was traced, and run for the first time. Args: steps: 1 if it was a training step, which counts."""
        self.traced += seconds
        self.traced_steps += steps

    def snapshot(self, world: World) -> dict[str, Any]:
        """The counts, for other ranks: numbers and texts by name.

        `time` is on the clock of the host; `cpu` is of all threads, `memory` in bytes; `generation` counts how often
        ranks have been left behind.
        """
        spent = trace.totals()
        return {
            "rank": world.first_ranks[world.rank],
            "host": world.host,
            "pid": os.getpid(),
            "generation": world.generation,
            "size": world.size,
            "step": self.step,
            "rows": self.rows,
            "epoch": self.epoch,
            "epochs": self.epochs,
            "in_epoch": self.in_epoch,
            "of_epoch": self.of_epoch,
            "phase": self.phase,
            "time": time.monotonic(),
            "input": self.input,
            "traced": self.traced,
            "traced_steps": self.traced_steps,
            "exchange": spent.get(EXCHANGE, 0.0),
            "wait": spent.get(WAIT, 0.0),
            "cpu": time.process_time(),
            "cores": len(os.sched_getaffinity(0)),
            "memory": memory(),
        }


def memory() -> int:
    """Bytes of this process that are in memory; 0 where the system does not say."""
    try:
        descriptor = os.open("/proc/self/statm", os.O_RDONLY)
        try:
            return int(os.read(descriptor, 200).split()[1]) * _PAGE
        finally:
            os.close(descriptor)
    except (OSError, ValueError, IndexError):
        return 0
