"""The checkpoints of a job that is started again when a rank dies: each is there whole, or not there.

A checkpoint is written by one rank, to a draft beside its place, which is flushed to disk and moved there. It ends in
its length and a checksum. The newest two of the fit that is under way are kept, and what each fit left at its end; of
an elastic function of a Horovod script, its newest two commits.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import re
import shutil
import struct
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from matex_tf.errors import MatexError
from matex_tf.settings import Settings
from matex_tf.world import World

#: How many checkpoints of the fit that is under way are kept.
KEPT = 2

_MAGIC = b"matex_tf checkpoint 1\n"
_END = struct.Struct("<QI")  # bytes of the content, and their crc32
_CHUNK = 1 << 20
_NAME = re.compile(r"(fit|elastic)-(\d+)\.(?:done|epoch-(\d+)\.step-(\d+))")


class Damaged(MatexError):
    """A checkpoint is not what was written."""


@dataclass(frozen=True, order=True)
class Place:
    """Where in a script a checkpoint was taken.

    Attributes:
        fit: which of the script's calls of `fit`, from 1.
        epoch, step: what was about to begin, from 0; both -1 where the fit was complete.
        what: "fit", or "elastic" for a function of a Horovod script, whose commits are counted as epochs.
    """

    fit: int
    epoch: int = -1
    step: int = -1
    what: str = "fit"

    @property
    def done(self) -> bool:
        """Whether the fit was complete."""
        return self.epoch < 0

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.what}-{self.fit:04d}" + (
            ".done" if self.done else f".epoch-{self.epoch:06d}.step-{self.step:09d}"
        )

    @classmethod
    def of(cls, name: str) -> Place | None:
        """The place of a file; None where it is no checkpoint."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        what, fit, epoch, step = found.groups()
        return cls(int(fit), int(epoch or -1), int(step or -1), what)

    def __str__(self) -> str:
        if self.what == "elastic":
            return f"commit {self.epoch} of elastic function {self.fit}"
        if self.done:
            return f"the end of fit {self.fit}"
        return f"step {self.step + 1} of epoch {self.epoch + 1} of fit {self.fit}"


class _Checked:
    """A file that counts and sums up what is written to it."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.size = self.sum = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.sum = zlib.crc32(view, self.sum)
        self.size += view.nbytes
        return self._file.write(view)


def write(path: Path, state: Any) -> None:
    """Put a file in place, whole, whatever happens meanwhile.

    Args:
        state: anything that can be pickled.
    """
    draft = path.with_name(f".{path.name}.draft")
    with open(draft, "wb") as file:
        file.write(_MAGIC)
        checked = _Checked(file)
        pickle.dump(state, checked, protocol=5)
        file.write(_END.pack(checked.size, checked.sum))
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    _flush_folder(path.parent)


def _flush_folder(path: Path) -> None:
    """Let the new name be on disk too, where the file system can do that."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read(path: Path) -> Any:
    """What `write` was given.

    Raises:
        Damaged: the file is cut off, or its checksum is wrong.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size - len(_MAGIC) - _END.size
        if file.read(len(_MAGIC)) != _MAGIC or size < 0:
            raise Damaged(f"{path} is no checkpoint of this version, or cut off.")
        found, left = 0, size
        while left > 0 and (data := file.read(min(_CHUNK, left))):
            found = zlib.crc32(data, found)
            left -= len(data)
        told, expected = _END.unpack(file.read(_END.size))
        if told != size:
            raise Damaged(f"{path} is cut off: it has {size} bytes of content, and should have {told}.")
        if found != expected:
            raise Damaged(f"{path} is damaged: its checksum is wrong.")
        file.seek(len(_MAGIC))
        return pickle.load(file)


class Checkpoints:
    """A directory of checkpoints, and the thread that writes to it.

    Attributes:
        path: the directory.
        resumed: whether to go on from what is there.
        say: prints a line for the user.
    """

    def __init__(self, path: Path, resumed: bool, say: Callable[[str], None]):
        self.path = path
        self.resumed = resumed
        self.say = say
        self._jobs: queue.Queue[tuple[Place, Callable[[], Any]] | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Make the directory, and clear away drafts; without `resumed`, all checkpoints. For one rank.

        Raises:
            MatexError: the directory cannot be made or written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for path in self.path.iterdir():
                if path.name.endswith(".draft") or (Place.of(path.name) and not self.resumed):
                    path.unlink()
            self._mark("over").unlink(missing_ok=True)
            self._mark("begun").touch()
        except OSError as error:
            raise self.unusable(error) from None

    def unusable(self, error: OSError) -> MatexError:
        """The error for a directory that cannot be made or written to."""
        return MatexError(
            f"{self.path} cannot hold checkpoints ({error.strerror}): give another directory as --checkpoint-dir."
        )

    def _mark(self, name: str) -> Path:
        return self.path / name

    @property
    def begun(self) -> bool:
        """Whether the ranks of the job have come to their script."""
        return self._mark("begun").exists()

    @property
    def over(self) -> bool:
        """Whether the script has ended by itself, at its end or with an error."""
        return self._mark("over").exists()

    @property
    def empty(self) -> bool:
        """Whether there is no checkpoint."""
        return not any(Place.of(path.name) for path in self.path.iterdir())

    def forget_begin(self) -> None:
        """The job is about to be started."""
        self._mark("begun").unlink(missing_ok=True)

    def end(self) -> None:
        """The script has ended by itself, at its end or with an error: it shall not be started again."""
        with contextlib.suppress(OSError):
            self._mark("over").touch()

    def seed(self, drawn: int) -> int:
        """The seed of the job that wrote the checkpoints, or else this one, which is kept."""
        mark = self._mark("seed")
        if self.resumed and mark.exists():
            return int(mark.read_text())
        mark.write_text(str(drawn))
        return drawn

    def places(self, fit: int, what: str = "fit") -> list[Place]:
        """The checkpoints of a fit, or of what it is, the best first: its end, then the newest."""
        found = [Place.of(path.name) for path in self.path.iterdir()]
        mine = [place for place in found if place and (place.fit, place.what) == (fit, what)]
        return sorted(mine, key=lambda place: (place.done, place), reverse=True)

    def find(self, fit: int, what: str = "fit") -> tuple[Place, Any] | None:
        """The best checkpoint of a fit that can be read; those that cannot are removed, with a line."""
        for place in self.places(fit, what):
            path = self.path / place.name
            try:
                return place, read(path)
            except (Damaged, OSError, pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
                older = "; an older one takes its place" if len(self.places(fit, what)) > 1 else ""
                self.say(f"{str(error).rstrip('.')}{older}")
                with contextlib.suppress(OSError):
                    path.unlink()
        return None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is still being written."""
        return self._jobs.unfinished_tasks > 0

    def save(self, place: Place, state: Callable[[], Any]) -> None:
        """Write a checkpoint, in the background; those that it replaces are removed when it is there.

        Args:
            state: gives what to write; called in the background.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="checkpoints", daemon=True)
            self._thread.start()
        self._jobs.put((place, state))

    def finish(self) -> None:
        """Wait until all checkpoints are written."""
        self._jobs.join()

    def _write_all(self) -> None:
        while job := self._jobs.get():
            place, state = job
            try:
                write(self.path / place.name, state())
                inside = [other for other in self.places(place.fit, place.what) if not other.done]
                for old in inside if place.done else inside[KEPT:]:
                    (self.path / old.name).unlink()
            except OSError as error:  # a full disk is no reason to stop training
                self.say(f"the checkpoint of {place} could not be written to {self.path}: {error.strerror}")
            finally:
                del job, state
                self._jobs.task_done()

    def remove(self) -> None:
        """Remove the directory, and that of all jobs where it is empty."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.parent.name == DEFAULT:
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()


#: The directory, in the working directory, of the checkpoints of jobs that were given none.
DEFAULT = ".matex-checkpoints"


def folder(wanted: str, script: str) -> Path:
    """The directory of a job's checkpoints, absolute.

    Args:
        wanted: the setting `checkpoint_dir`.
        script: the name of the script, or of the module.
    """
    return Path(wanted or os.path.join(DEFAULT, Path(script).stem)).absolute()


#: The checkpoints of this job; None where it is not started again.
current: Checkpoints | None = None

#: In the environment of a job of `matex-tf run`: how often it has been started again, and when a rank died (seconds
#: since 1970).
RESTARTS, DIED = "MATEX_RESTARTS", "MATEX_DIED"


def join(world: World, settings: Settings, script: str) -> Checkpoints:
    """Open the checkpoints of this job. Every rank must call.

    Raises:
        MatexError: the directory cannot be written to, or is another one on another host.
    """
    global current
    current = Checkpoints(folder(settings.checkpoint_dir, script), settings.resume, lambda line: world.say(line))
    failure = None
    if world.rank == 0:
        try:
            current.open()
        except MatexError as error:
            failure = str(error)
    failure = world.share(failure, "open the checkpoints")
    if failure:
        raise MatexError(failure)
    unseen = {host for host, seen in world.gather((world.host, current.begun), "see the checkpoints") if not seen}
    if unseen:
        raise MatexError(
            f"{current.path} is a directory of {world.hosts[0]} that {', '.join(sorted(unseen))} cannot see: give one "
            "that all hosts share as --checkpoint-dir."
        )
    if RESTARTS not in os.environ and settings.notes and world.rank == 0:
        world.say(f"checkpoints are in {current.path}; after a death, --resume on goes on from them")
    return current


def leave(world: World) -> None:
    """The script has ended well on all ranks: its checkpoints are of no use any more."""
    if current is None or world.rank:
        return
    current.end()
    if RESTARTS not in os.environ:  # else they are the launcher's to remove
        current.finish()
        current.remove()
