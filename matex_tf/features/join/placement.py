"""On which host of a job a rank that comes is started, and by which rank of the job.

Open MPI 5 starts a rank on another host than that of whoever asks for it, and then its daemons were seen to crash, see
`start` of `core.transport.mpi`. So a rank is started by one of its host.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matex_tf.core.world import World
from matex_tf.errors import CommunicationError

#: Seconds in which the program of a rank that comes has joined MPI, which it does before it imports TensorFlow.
START_SECONDS = 90.0
#: What ranks that come have of the environment of the one that starts them.
_PASSED_ON = ("TF_", "OMP_", "KERAS_", "XLA_", "PYTHONPATH")


def read(hosts: str, unsaid: int = 0) -> dict[str, int]:
    """Hosts as `--hosts` has them, and how many ranks may come to each; 0 for any number. `localhost` is this one.

    Args:
        unsaid: the number of a host that has none.
    """
    wanted: dict[str, int] = {}
    for word in hosts.split(",") if hosts else ():
        name, _, count = word.partition(":")
        name = name.rpartition("@")[2]
        name = socket.gethostname() if name == "localhost" else name
        wanted[name] = wanted.get(name, 0) + int(count or unsaid)
    return wanted


class Placement:
    """Where the ranks that somebody has asked for are to be, one after the other."""

    def __init__(self, world: World, cores: Mapping[str, int], wanted: Mapping[str, int]):
        """Args: cores: of each host. wanted: see `read`; empty for all hosts of the job."""
        self._world, self._cores = world, cores
        self._left = {host: count or math.inf for host, count in wanted.items()}

    def next(self, coming: Sequence[str]) -> tuple[str, str]:
        """The host with the most room, of several the one that comes first in the job; else "", and why, in words.

        Args:
            coming: the hosts of ranks that are on their way.
        """
        world, full = self._world, False
        rooms: list[tuple[float, int, str, list[str]]] = []
        for ranks in world.nodes:
            host = world.hosts[ranks[0]]
            named = [name for name in self._left if is_host(name, host)]
            if named or not self._left:
                if named and self._left[named[0]] < 1:
                    full = True
                    continue
                rooms.append(((len(ranks) + coming.count(host)) / self._cores.get(host, 1), len(rooms), host, named))
        if not rooms:
            there = ", ".join(dict.fromkeys(world.hosts))
            return (
                "",
                "--hosts has no more room" if full else f"ranks come to the hosts of the job ({there}), not to others",
            )
        _, _, host, named = min(rooms)
        if named:
            self._left[named[0]] -= 1
        return host, ""

    def starter(self, host: str) -> int:
        """The rank of that host that starts ranks there, by the number that it had first."""
        return self._world.first_ranks[self._world.hosts.index(host)]


class Starter:
    """Starts ranks on this host, one at a time.

    Attributes:
        bridges: to those that it has started, by their numbers, see `Communicator.extend`.
    """

    def __init__(self, world: World):
        self._world = world
        self.bridges: dict[int, Any] = {}
        self._said: list[dict[str, Any]] = []
        self._starting = threading.Lock()

    def start(self, told: dict[str, Any], begun: Callable[[], None] = lambda: None) -> str:
        """Start one; why that went wrong, in words.

        Args:
            told: what it is told.
            begun: called once it is its turn.
        """
        if not self._starting.acquire(timeout=START_SECONDS):
            return "a joining rank is refused: an earlier one has not started yet, or has died; try again"
        try:
            begun()
            environ = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
            words = [sys.executable, "-m", "matex_tf.features.join.newcomer"]
            bridge = self._world.start(words, {**told, "environ": environ, "path": sys.path[1:]})
        except CommunicationError as error:
            return f"a joining rank cannot be started: {error}"
        finally:
            self._starting.release()
        self.bridges[told["number"]] = bridge
        return ""

    def tell_to_leave(self, rank: int) -> None:
        """Have a rank get SIGTERM, which it sends itself. Args: rank: by its first number."""
        self._said.append({"leave": rank})

    def ask_another(self, rank: int, told: dict[str, Any]) -> None:
        """Have another rank start one. Args: rank: by its first number."""
        self._said.append({"start": told["number"], "by": rank, "told": told})

    def start_for_another(self, told: dict[str, Any]) -> None:
        """Start one in a thread of its own, as another rank has asked for."""

        def work() -> None:
            if why := self.start(told):
                self._said.append({"start": told["number"], "failed": why})

        threading.Thread(target=work, daemon=True).start()

    def tells(self) -> list[dict[str, Any]]:
        """What this rank tells the others, who ask one another now and then: whom to start, what went wrong, and who
        shall leave."""
        said = list(self._said)
        del self._said[: len(said)]
        return said


def is_host(name: str, host: str) -> bool:
    """Whether a host is meant by a `name`, with a domain or without, or an IPv4 address. Args: host: its own name."""
    if name.replace(".", "").isdigit():
        with contextlib.suppress(OSError):
            return name in socket.gethostbyname_ex(host)[2]
    return name == host or name.partition(".")[0] == host.partition(".")[0]
