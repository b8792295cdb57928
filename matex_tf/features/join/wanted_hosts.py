"""The ranks that each host of a job shall have, as a file says which may change (`--hosts-file`): ranks come and leave.

The launcher sees that the file has changed, and tells the first rank. Ranks come as for `matex-tf join`, and leave by
SIGTERM, which each of them sends itself once it is told so where the ranks ask one another who comes and leaves.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from matex_tf import settings
from matex_tf.core.world import World
from matex_tf.features.join.placement import Starter, is_host

#: Seconds between two looks whether ranks have left.
_PAUSE = 0.2


class _Coming(Protocol):
    """A rank that is on its way: `over` is set once it has come, or will not."""

    over: threading.Event


class WantedHosts:
    """What a file wants of the ranks of a job, on its first rank."""

    def __init__(
        self,
        world: World,
        starter: Starter,
        on_their_way: Callable[[], list[str]],
        bring: Callable[[int, Mapping[str, int]], Sequence[_Coming]],
    ):
        """Args: on_their_way, bring: of `growth.Growth`."""
        self._world, self._starter, self._on_their_way, self._bring = world, starter, on_their_way, bring
        wanted = settings.current()
        self._least, self._most = max(1, wanted.min_ranks), wanted.max_ranks or math.inf
        self._wanted: Mapping[str, int] = {}
        self._told: set[int] = set()  # to leave, by their first numbers
        self._strange: set[str] = set()

    def follow(self, file: str, wanted: Mapping[str, int]) -> None:
        """Have ranks leave and come until each host has what it shall have; for a thread of its own.

        Args:
            file: its name, for lines.
            wanted: ranks by host; a host that is not among them keeps what it has.
        """
        self._wanted, world = wanted, self._world
        self._say_strange(file)
        leaving = len(self._let_go())
        coming = self._on_their_way()
        missing = {host: count - len(self._on(host)) - coming.count(host) for host, count in self._rooms().items()}
        missing = {host: count for host, count in missing.items() if count > 0}
        ranks = int(min(sum(missing.values()), self._most - len(self._staying) - len(coming)))
        if leaving or ranks > 0:
            world.log(f"{file} has changed: ranks to join: {max(0, ranks)}, to leave: {leaving}")
        while self._told.intersection(world.first_ranks):
            time.sleep(_PAUSE)
            if self._wanted is not wanted:
                return
        for one in self._bring(ranks, missing):
            one.over.wait()
        left = len(self._too_many())
        if (stay := left - len(self._let_go())) and self._wanted is wanted:
            world.log(f"ranks that {file} has no room for stay ({stay}): the job has --min-ranks {self._least}")

    def _rooms(self) -> dict[str, int]:
        """How many ranks each host of the job shall have, of those that the file is about."""
        rooms: dict[str, int] = {}
        for host in dict.fromkeys(self._world.hosts):
            for name, count in self._wanted.items():
                if is_host(name, host):
                    rooms[host] = rooms.get(host, 0) + count
        return rooms

    @property
    def _staying(self) -> dict[int, str]:
        """The host of each rank that was not told to leave, by its first number."""
        pairs = zip(self._world.first_ranks, self._world.hosts, strict=False)  # may change meanwhile
        return {first: host for first, host in pairs if first not in self._told}

    def _on(self, host: str) -> list[int]:
        """The ranks that stay on a host, the oldest first."""
        return sorted(first for first, where in self._staying.items() if where == host)

    def _too_many(self) -> list[int]:
        """The ranks for which hosts have no room any more, the newest first."""
        found = [first for host, count in self._rooms().items() for first in self._on(host)[count:]]
        return sorted(found, reverse=True)

    def _let_go(self) -> list[int]:
        """Tell ranks to leave for which hosts have no room, as long as enough are left; those that were told."""
        leaving = self._too_many()[: max(0, len(self._staying) - self._least)]
        for first in leaving:
            self._told.add(first)
            self._starter.tell_to_leave(first)
        return leaving

    def _say_strange(self, file: str) -> None:
        """Say of hosts that no rank can come to them, once of each."""
        there = dict.fromkeys(self._world.hosts)
        for name, count in self._wanted.items():
            if count and name not in self._strange and not any(is_host(name, host) for host in there):
                self._strange.add(name)
                self._world.log(
                    f"{file} names {name}, on which the job has no rank: none can come there, as daemons of Open MPI 5 "
                    "crash then"
                )
