"""Training behind the page: a thread starts `matex-tf run`, hands over what is labelled, and takes back suggestions.

It never holds anything that the page waits for. A script that fails is said, with the end of what it printed, and tried
again when labels have changed.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.errors import DataError
from matex_tf.features.label import rounds
from matex_tf.features.label.images import Images
from matex_tf.launch import lifetime

_LOOK = 0.1  # seconds between looks at what a script has written
_TOGETHER = 0.2  # seconds in which labels come that were given at once
_FEWEST = 2  # labels of each of two classes before a script is started
_TAIL = 4000  # characters of what a script has printed
_WAIT_FOR_END = 5.0  # seconds for ranks to end, before they are killed


@dataclass(frozen=True)
class Plan:
    """How to train: what `matex-tf label` was given.

    Attributes:
        run: options of matex-tf run, such as -n 4.
        target: what runs: a script and its arguments, or -m and a module.
        size: pixels across of the images that a network learns from.
        held_out: the share of labels that is kept for measuring.
        task: for every round; classes and folder are set for each.
        stays: whether it takes its rounds from `rounds.rounds`, and can be started before there is one.
    """

    run: list[str]
    target: list[str]
    size: int = 64
    held_out: float = 0.2
    task: rounds.Task = field(default_factory=lambda: rounds.Task([]))
    stays: bool = False


#: What the page says of labels: groups by id with their names, and the group of each image, None without.
Labels = tuple[list[tuple[int, str]], dict[int, int]]


class Training:
    """Trains as long as labels change.

    Args:
        labels: says what is labelled now.
        say: told of each change of state, for the page: `state` (off, waiting, reading, starting, training, failed),
            `text`, and `log`, rows of what the script has logged.
        done: told of each result.
        name: of the labels; what a server with the same ones has left behind, which was killed, is removed.
    """

    def __init__(
        self,
        images: Images,
        plan: Plan,
        labels: Callable[[], Labels],
        say: Callable[[dict[str, Any]], None],
        done: Callable[[rounds.Result], None],
        name: str = "",
    ):
        self.plan, self.on = plan, True
        self._images, self._labels, self._say, self._done = images, labels, say, done
        prefix = f".matex-label-{name}-"
        for left in Path.cwd().glob(f"{glob.escape(prefix)}*"):
            shutil.rmtree(left, ignore_errors=True)
        self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=os.getcwd()))  # hosts must share it
        self._process: subprocess.Popen[bytes] | None = None
        self._number, self._changed, self._over = 0, threading.Event(), False
        self._trained_on: Any = None
        self._rounds_done, self._again = 0, False
        self.state: dict[str, Any] = {"state": "waiting", "text": "", "log": [], "round": 0}
        self._thread = threading.Thread(target=self._run, name="matex_tf label training", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def look(self) -> None:
        """Labels have changed, or what was asked for."""
        self._changed.set()

    def switch(self, *, on: bool | None = None, semi: bool | None = None) -> None:
        """Train otherwise.

        Args:
            on: whether to train at all; where not, a round that is under way ends. None: as before.
            semi: whether to learn from images without a label too, from the next round on; None: as before.
        """
        if on is not None:
            self.on = on
        if semi is not None:
            self.plan = replace(self.plan, task=replace(self.plan.task, semi=semi))
        self.look()

    def stop(self) -> None:
        """End the script and its ranks, and remove what was handed over."""
        self._over = True
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(2 * _WAIT_FOR_END)
        self._end_script()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        self._try(self._get_ready)
        while not self._over:
            self._changed.wait()
            self._try(self._rounds)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # whatever a script has written; the page goes on
            self._end_script()
            self._tell("failed", str(error))
            print(f"matex-tf label: training failed: {error}", file=sys.stderr, flush=True)

    def _get_ready(self) -> None:
        """Start ranks before there is anything to learn: that takes longer than a round."""
        if self.plan.stays and self.on and not self._over:
            self._write_images()
            if not self._over:
                self._start_script(rounds.name(self._folder, 1))

    def _rounds(self) -> None:
        """Train until there is nothing new."""
        while not self._over:
            time.sleep(_TOGETHER)
            self._changed.clear()  # what changes from here on is for the round after this one
            if (asked := self._next()) is None:
                return
            self._round(*asked)

    def _tell(self, state: str, text: str = "", **more: Any) -> None:
        self.state = {**self.state, "state": state, "text": text, **more}
        self._say(self.state)

    def _next(self) -> tuple[rounds.Task, list[int], np.ndarray, np.ndarray] | None:
        """What to train on now; None where there is nothing new, or too little."""
        if not self.on:
            self._end_script()
            self._tell("off")
            return None
        groups, labelled = self._labels()
        labels = np.full(len(self._images.names), -1, np.int64)
        members: dict[int, list[int]] = {group: [] for group, _ in groups}
        for image, group in labelled.items():
            if group in members:
                members[group].append(image)
        some = [(group, name) for group, name in groups if len(members[group]) >= _FEWEST]
        if len(some) < 2:
            self._tell("waiting", f"{_FEWEST} images in each of two groups, and training begins")
            return None
        for place, (group, _) in enumerate(some):
            labels[members[group]] = place
        task = replace(self.plan.task, classes=[name for _, name in some], seed=self._number)
        state = ([group for group, _ in some], labels.tobytes(), task.semi)
        if state == self._trained_on:
            self._tell("waiting", "all labels are learned")
            return None
        self._trained_on = state
        return task, state[0], labels, rounds.held_out(labels, self.plan.held_out)

    def _round(self, task: rounds.Task, groups: list[int], labels: np.ndarray, held: np.ndarray) -> None:
        self._write_images()
        number = self._number = self._number + 1
        begin = time.monotonic()
        place = rounds.begin(self._folder, number, task, labels, held)
        counts: dict[str, Any] = {"labelled": int((labels >= 0).sum()), "held_out": int(held.sum())}
        if self._process is None or self._process.poll() is not None:
            self._start_script(place)
        self._tell("training" if self._rounds_done else "starting", log=[], round=number, seconds=None, **counts)
        shown: list[int] = []
        last: rounds.Result | None = None
        while not self._over and self.on:
            ended = self._process is not None and self._process.poll() is not None
            done = ended or (place / rounds.DONE).exists()
            written = rounds.written(place)
            if (log := rounds.read_log(place / "log.csv")) != self.state["log"]:
                self._tell("training", log=log)
            if self._changed.is_set():
                (place / rounds.HURRY).touch()
            # Suggestions come last: what is beside them belongs to those before, until the round is over.
            if written[-1] and (written[-1:] != shown[-1:] or (done and written != shown)):
                try:
                    result = self._read(place, number, groups, task.semi)
                except DataError:  # a script may be writing it
                    if done:
                        raise
                else:
                    if not result.same_as(last):  # each rank writes the same
                        self._done(result)
                    if last is None:
                        self._tell("training", seconds=round(time.monotonic() - begin, 1))
                    shown, last = written, result
            if done:
                break
            time.sleep(_LOOK)
        else:
            return
        code = self._process.poll() if self._process else None
        if last is None or code:
            how = f"ended in round {number} with exit code {code}" if ended else f"has done round {number}"
            self._give_up(f"the script {how}{'' if last else ' without suggestions.npy'}.")
            return
        self._rounds_done, self._again = self._rounds_done + 1, False
        for old in self._folder.glob("round-*"):
            if old != place:
                shutil.rmtree(old, ignore_errors=True)

    def _give_up(self, what: str) -> None:
        """The script has ended before its time: start it again if it had done a round before, once.

        Raises:
            DataError: it has not, or that did not help.
        """
        if not self._rounds_done or self._again:
            raise DataError(f"{what}\n{self._printed()}")
        print(f"matex-tf label: {what} It is started again.\n{self._printed()}", file=sys.stderr, flush=True)
        self._again = True
        self._end_script()

    def _read(self, place: Path, number: int, groups: list[int], semi: bool) -> rounds.Result:
        count = len(self._images.names)
        suggestions = rounds.read_array(place / "suggestions.npy", (count, len(groups)))
        assert suggestions is not None
        features = rounds.read_array(place / "features.npy", (count, None))
        return rounds.Result(
            number, groups, suggestions, features, rounds.read_array(place / "disagreement.npy", (count,)), semi
        )

    def _write_images(self) -> None:
        """All images in the size in which they are learned from, in one file, once."""
        if (self._folder / "images.npy").exists():
            return
        count, draft = len(self._images.names), self._folder / "draft.npy"
        first = self._first_readable()
        shape = (
            first.shape
            if first.ndim == 1
            else (*first.shape[:2], 3 if self._images.kind == "files" else first.shape[2])
        )
        array = np.lib.format.open_memmap(draft, "w+", first.dtype, (count, *shape))
        last, grey = 0.0, first.ndim == 3
        for number in range(count):
            if self._over:
                return
            try:
                row = self._images.numbers(number, self.plan.size)
            except DataError:  # the page shows which
                row = np.zeros_like(first)
            grey = grey and row.ndim == 3 and (row.shape[2] == 1 or not np.ptp(row, axis=2).any())
            array[number] = row
            if time.monotonic() - last > 0.5:
                last = time.monotonic()
                self._tell("reading", f"{number + 1:,} of {count:,} images are read")
        array.flush()
        if grey and shape[-1] == 3:  # files of shades of grey, as most of science has
            small = self._folder / "draft-grey.npy"  # not in the place of what is mapped
            np.save(small, array[..., :1])
            del array
            small.replace(draft)
        draft.rename(self._folder / "images.npy")

    def _first_readable(self) -> np.ndarray:
        reason = DataError("there are no images.")
        for number in range(len(self._images.names)):
            try:
                return self._images.numbers(number, self.plan.size)
            except DataError as error:
                reason = error
        raise reason

    def _start_script(self, place: Path) -> None:
        main = "import sys; from matex_tf.cli.main import main; sys.exit(main(sys.argv[1:]))"
        line = [sys.executable, "-c", main, "run", *self.plan.run, "-x", rounds.DIRECTORY, *self.plan.target]
        with open(self._folder / "printed", "wb") as printed:
            self._process = lifetime.start(
                line,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, rounds.DIRECTORY: str(place)},
            )

    def _end_script(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        (self._folder / rounds.STOP).touch()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_WAIT_FOR_END)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with contextlib.suppress(OSError):
            (self._folder / rounds.STOP).unlink()
        self._trained_on = None

    def _printed(self) -> str:
        with contextlib.suppress(OSError):
            return (self._folder / "printed").read_bytes()[-_TAIL:].decode(errors="replace").strip()
        return ""
