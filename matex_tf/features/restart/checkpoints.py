"""The checkpoints of a job that is started again when a rank dies: each is there whole, or not there.

One rank writes them, to a directory of their own in `--checkpoint-dir`. The newest two of the fit that is under way are
kept, and what each fit left at its end; of an elastic function of a Horovod script, its newest two commits. What a job
has not made it does not remove.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from matex_tf.core import starting
from matex_tf.core.world import World
from matex_tf.errors import MatexError
from matex_tf.faults.place import Place
from matex_tf.features.restart.files import Damaged, draft_of, is_draft, read, write
from matex_tf.features.restart.options import RestartOptions
from matex_tf.settings import Settings
from matex_tf.storage.background_writer import BackgroundWriter
from matex_tf.storage.private_directory import Folder

#: How many checkpoints of the fit that is under way are kept.
KEPT = 2

#: The directory of the checkpoints of all jobs, in that of `--checkpoint-dir` or in the working directory.
DIRECTORY = ".matex-checkpoints"

_BEGUN, _OVER, _SEED, LOCK = "job.begun", "job.over", "job.seed", "job.lock"
_MARKS = {_BEGUN, _OVER, _SEED, LOCK, draft_of(_SEED)}


class Checkpoints:
    """A directory of checkpoints, and the thread that writes to it.

    Attributes:
        base: the directory in which it is.
        path: the directory.
        resumed: whether to go on from what is there.
        say: prints a line for the user.
        seconds: between checkpoints within an epoch; with 0 there is one at the end of each epoch.
        asked_to_end: whether SIGUSR1 has asked this rank for a checkpoint, with which the job ends.
        told_to_end: when SIGTERM has told this rank to end, by the monotonic clock; 0.0 where it has not.
    """

    def __init__(self, base: Path, script: str, resumed: bool, say: Callable[[str], None]):
        """Args: base: absolute. script: its name, or that of a module."""
        self.base = base
        self._names = (DIRECTORY, Path(os.path.abspath(script)).stem or "script")
        self.path = base.joinpath(*self._names)
        self.resumed = resumed
        self.say = say
        self.seconds = 0.0
        self.asked_to_end, self.told_to_end = False, 0.0
        self._opened: Folder | None = None
        self._writer = BackgroundWriter("checkpoints", self._not_written)

    @property
    def folder(self) -> Folder:
        """The directory, open.

        Raises:
            MatexError: it cannot be made, or others could change what is in it.
        """
        if self._opened is None:
            try:
                self._opened = Folder(self.base, self._names, "--checkpoint-dir")
            except OSError as error:
                raise self.unusable(error) from None
        return self._opened

    def open(self) -> None:
        """Make the directory, and clear away drafts; without `resumed`, all checkpoints. For one rank.

        Raises:
            MatexError: the directory cannot be made or written to, or others could change what is in it.
        """
        folder = self.folder
        try:
            for name in folder.names():
                if is_draft(name) or (Place.of(name) and not self.resumed):
                    folder.remove(name)
            folder.remove(_OVER)
            folder.touch(_BEGUN)
        except OSError as error:
            raise self.unusable(error) from None

    def unusable(self, error: OSError) -> MatexError:
        """The error for a directory that cannot be made or written to."""
        return MatexError(
            f"{self.path} cannot hold checkpoints ({error.strerror}): give another directory as --checkpoint-dir."
        )

    @property
    def script_started(self) -> bool:
        """Whether the ranks of the job have come to their script. Any rank may ask."""
        return (self.path / _BEGUN).exists()

    @property
    def script_ended(self) -> bool:
        """Whether the script has ended by itself, at its end or with an error."""
        return self.folder.has(_OVER)

    @property
    def empty(self) -> bool:
        """Whether there is no checkpoint."""
        return not any(map(Place.of, self.folder.names()))

    def forget_begin(self) -> None:
        """The job is about to be started."""
        self.folder.remove(_BEGUN)

    def end(self) -> None:
        """The script has ended by itself, at its end or with an error: it shall not be started again. Any rank may."""
        with contextlib.suppress(OSError, MatexError):
            self.folder.touch(_OVER)

    def seed(self, drawn: int) -> int:
        """The seed of the job that wrote the checkpoints, or else this one, which is kept.

        Raises:
            MatexError: it cannot be written; or that job hashed text in another way.
        """
        hashes = str(starting.hash_mark())
        if self.resumed and self.folder.has(_SEED):
            try:
                seed, before = read(self.folder, _SEED)
            except (Damaged, OSError, TypeError, ValueError) as error:
                self.say(f"{str(error).rstrip('.')}; the job draws other random numbers than before")
            else:
                if before != hashes:
                    raise MatexError(
                        f"the checkpoints in {self.path} are of a job with another {starting.HASH_SEED}: a vocabulary "
                        "that is made from a set would be another than that of the weights. Set it as before, or start "
                        "without --resume."
                    )
                return int(seed)
        try:
            write(self.folder, _SEED, [drawn, hashes])
        except OSError as error:
            raise self.unusable(error) from None
        return drawn

    def places(self, fit: int, what: str = "fit") -> list[Place]:
        """The checkpoints of one call, the best first: its end, then the newest. Args: see `Place`."""
        found = map(Place.of, self.folder.names())
        mine = [place for place in found if place and (place.fit, place.what) == (fit, what)]
        return sorted(mine, key=lambda place: (place.done, place), reverse=True)

    def find(self, fit: int, what: str = "fit") -> tuple[Place, Any] | None:
        """The best checkpoint of one call that can be read, with what it holds; None where there is none.

        Those that are damaged are removed, with a line. Args: see `Place`.
        """
        places = self.places(fit, what)
        for place in places:
            try:
                return place, read(self.folder, place.name)
            except (Damaged, OSError) as error:
                older = "; an older one is used" if place != places[-1] else ""
                self.say(f"{str(error).rstrip('.')}{older}")
                if isinstance(error, Damaged):
                    with contextlib.suppress(OSError):
                        self.folder.remove(place.name)
        return None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is still being written."""
        return self._writer.busy

    def save(self, place: Place, state: Callable[[], Any]) -> None:
        """Write a checkpoint, in the background; those that it replaces are removed when it is there.

        Args:
            state: gives what to write, a plain value; called in the background.
        """

        def job() -> None:
            write(self.folder, place.name, state())
            inside = [other for other in self.places(place.fit, place.what) if not other.done]
            for old in inside if place.done else inside[KEPT:]:
                self.folder.remove(old.name)

        self._writer.do(str(place), job)

    def _not_written(self, place: str, error: BaseException) -> None:
        """A full disk, too little memory: no reason to stop training."""
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}".rstrip(": ")
        self.say(f"the checkpoint of {place} could not be written to {self.path}: {why}")

    def hear(self) -> None:
        """From now on SIGUSR1 asks for a checkpoint with which the job ends: batch systems send it before their time
        limit. A script that has a use of its own for the signal takes it over."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "asked_to_end", True))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # mpirun is deaf to it

    @contextlib.contextmanager
    def heeding_the_end(self) -> Iterator[None]:
        """Inside, SIGTERM tells this rank to end with its next checkpoint: where all ranks get it, the job is to end.
        SIGUSR2 is what the launcher has mpirun pass on for it. A second one ends the rank at once, and one that is not
        followed before the end of this ends it there."""
        own, heard = os.getpid(), []
        if threading.current_thread() is threading.main_thread():
            heard = [one for one in (signal.SIGTERM, signal.SIGUSR2) if signal.getsignal(one) == signal.SIG_DFL]

        def told(number: int, _: object) -> None:
            signal.signal(number, signal.SIG_DFL)
            if os.getpid() != own:  # one that it has forked
                os.kill(os.getpid(), number)
            self.told_to_end = time.monotonic()

        for one in heard:
            signal.signal(one, told)
        try:
            yield
        finally:
            for one in heard:
                if signal.getsignal(one) is told:
                    signal.signal(one, signal.SIG_DFL)
        if self.told_to_end:
            self.finish()
            os.kill(own, signal.SIGTERM)

    def finish(self) -> None:
        """Wait until all checkpoints are written."""
        self._writer.finish()

    def leave(self) -> None:
        """The script has ended well on all ranks: its checkpoints are of no use any more. For one rank."""
        self.end()
        if RESTARTS not in os.environ:  # else they are the launcher's to remove
            self.finish()
            self.remove()

    def remove(self) -> None:
        """Remove what this user's jobs of this script have written, then the directories if nothing else is in them."""
        with contextlib.suppress(OSError, MatexError):
            for name in self.folder.names():
                if Place.of(name) or is_draft(name) or name in _MARKS:
                    self.folder.remove(name)
            self.folder.remove_if_empty()


def directory(wanted: str) -> Path:
    """The absolute directory that holds `DIRECTORY`. Args: wanted: the setting `checkpoint_dir`."""
    return Path(wanted).absolute()


#: In the environment of a job of `matex-tf run`: how often it has been started again, and when a rank died (seconds
#: since 1970).
RESTARTS, DIED = "MATEX_RESTARTS", "MATEX_DIED"


def begin(world: World, settings: Settings, script: str) -> Checkpoints:
    """Open the checkpoints of this job, which the world has from now on. Every rank must call.

    Args:
        world: all ranks of the job.
        settings: say where, and whether to go on from what is there.
        script: its name, or that of a module; the directory is called after it.

    Raises:
        MatexError: the directory cannot be written to, can be changed by others, or is another one on another host.
    """
    asked = settings.of(RestartOptions)
    store = Checkpoints(directory(asked.checkpoint_dir), script, asked.resume, lambda line: world.log(line))
    store.seconds = asked.checkpoint_seconds
    world.checkpoints = store
    store.hear()
    failure = None
    if world.rank == 0:
        try:
            store.open()
        except MatexError as error:
            failure = str(error)
    failure = world.broadcast(failure, "open the checkpoints")
    if failure:
        raise MatexError(failure)
    unseen = {
        host for host, seen in world.allgather((world.host, store.script_started), "see the checkpoints") if not seen
    }
    if unseen:
        raise MatexError(
            f"{store.path} is a directory of {world.hosts[0]} that {', '.join(sorted(unseen))} cannot see: give one "
            "that all hosts share as --checkpoint-dir."
        )
    if RESTARTS not in os.environ and settings.notes and world.rank == 0:
        world.log(f"checkpoints are in {store.path}; after a death, --resume on continues from them")
    return store
