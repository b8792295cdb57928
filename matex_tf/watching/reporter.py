"""The thread in which a rank reports what it has counted, and in which the first rank gathers that and answers.

The ranks report to the first of those that are left, by TCP. Every rank has a port from the start, so that another one
can take over with no word between them where the first has died. On one machine the ports are those of its loopback;
elsewhere, and in a batch job, they are open to the network. Nothing is taken or told without the token of the job,
which the ranks have by the transport, and the user by a file that nobody else can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matex_tf.core import ports
from matex_tf.core.world import World
from matex_tf.errors import MatexError
from matex_tf.settings import Settings
from matex_tf.state import run_state
from matex_tf.watching import registry
from matex_tf.watching.job_state import JobState
from matex_tf.watching.meter import Meter

#: Seconds between two reports of a rank, at the least; many ranks take longer, or the first would get too many.
INTERVAL = 1.0
_RANKS_PER_SECOND = 500

_SECONDS_TO_GREET = 5.0
_SECONDS_TO_STOP = 2.0
_MOST_BYTES = 1 << 16  # of a line

Show = Callable[[JobState, Meter], None]


@dataclass(frozen=True)
class Place:
    """Where a rank can be reached. Attributes: name: of the job, if this is its first rank."""

    name: str
    host: str
    addresses: tuple[str, ...]
    port: int
    token: str


class Reporter:
    """The thread of this rank."""

    def __init__(
        self,
        world: World,
        meter: Meter,
        script: str,
        settings: Settings,
        in_batch: bool,
        shown: Sequence[Show],
        run: dict[str, Any],
    ):
        """Collective.

        Args:
            meter: what is reported.
            script: what the job runs, for those who watch.
            in_batch: whether the job may be watched from another host even where all ranks are on one.
            shown: called by the first rank after each report of its own.
            run: what a group that joins has to know, see `registry.Entry`.
        """
        self._world, self._meter = world, meter
        self._settings = settings
        self._shown, self._run = shown, run
        self._interval = max(INTERVAL, world.size / _RANKS_PER_SECOND)
        local = len(world.nodes) == 1 and not in_batch
        addresses = ["127.0.0.1"] if local else ports.addresses() or ["127.0.0.1"]
        self._listener = socket.create_server(("127.0.0.1" if local else "", 0), backlog=min(world.size + 8, 1024))
        self._listener.setblocking(False)
        run_state.part(_Held).add(self._listener)
        name = os.environ.get("SLURM_JOB_ID") or str(os.getpid())
        mine = Place(name, world.host, tuple(addresses), self._listener.getsockname()[1], secrets.token_hex(16))
        self._places: list[Place] = world.allgather(mine, "tell where ranks report")
        self._me = world.rank
        self._token = self._places[0].token
        if world.growth is not None:
            world.growth.reached_at(addresses=mine.addresses, port=mine.port, token=self._token)
        self._state = JobState(script, world.size, time.time())
        self._line: asyncio.StreamWriter | None = None
        self._leads_to = -1
        self._door: ports.Door | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._entry: registry.Entry | None = None
        self._stopping = threading.Event()
        self._wake: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._main, name="matex_tf report", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Say that this rank has ended, and end the thread."""
        self._stopping.set()
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._wake()
        self._thread.join(_SECONDS_TO_STOP)

    def _main(self) -> None:
        with contextlib.suppress(Exception):  # a report that is missing must not end a training
            asyncio.run(self._report())

    async def _report(self) -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(stopping.set)
        try:
            while not self._stopping.is_set():
                with contextlib.suppress(OSError, IndexError):  # of a world that changes right now
                    await self._once()
                with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(stopping.wait(), self._interval)
            with contextlib.suppress(OSError):
                await self._send({"bye": True})
        finally:
            if self._entry is not None:
                registry.remove(self._entry.name, self._entry.pid, self._settings.watch_dir)
            if self._door is not None:
                loop.remove_reader(self._listener)
                self._door.close()
            if self._line is not None:
                self._line.close()

    async def _once(self) -> None:
        left = list(self._world.first_ranks)
        first = left[0]
        counts = self._meter.snapshot(self._world)
        if first != self._me:
            if first != self._leads_to:
                await self._connect(first)
            await self._send(counts)
            return
        if self._door is None:
            self._lead()
        elif self._entry is not None and self._entry.center is None and self._world.center is not None:
            self._write_down()  # from now on groups can join
        self._state.heard(counts)
        for number in range(self._world_size):
            if number not in left:
                self._state.left(number, ended=False, host=self._places[number].host)
        for show in self._shown:
            show(self._state, self._meter)

    @property
    def _world_size(self) -> int:
        return len(self._places)

    async def _connect(self, first: int) -> None:
        place = self._places[first]
        for address in place.addresses:
            with contextlib.suppress(OSError, TimeoutError, asyncio.TimeoutError):
                opening = asyncio.open_connection(address, place.port)
                _, self._line = await asyncio.wait_for(opening, _SECONDS_TO_GREET)
                self._leads_to = first
                await self._send({"token": self._token, "rank": self._me})
                return
        raise ConnectionError

    async def _send(self, values: dict[str, Any]) -> None:
        if self._line is None:
            return
        try:
            self._line.write(json.dumps(values).encode() + b"\n")
            await asyncio.wait_for(self._line.drain(), _SECONDS_TO_GREET)
        except (OSError, TimeoutError, asyncio.TimeoutError):
            self._leads_to = -1  # tried again with the next report
            raise ConnectionError from None

    def _lead(self) -> None:
        """From now on the others report to this rank."""
        self._door = door = ports.Door(self._listener)
        loop = asyncio.get_running_loop()

        def knock() -> None:
            with contextlib.suppress(OSError):  # whoever it was is gone
                connection = door.accept()
                if connection is not None:
                    task = loop.create_task(self._hear(connection, door))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)

        loop.add_reader(self._listener, knock)
        self._write_down()

    def _write_down(self) -> None:
        """Let those who watch, and those who join, find this job."""
        place, center = self._places[self._me], self._world.center
        entry = registry.Entry(
            self._places[0].name, self._state.script, self._state.size, self._state.started, place.host, os.getpid(),
            place.addresses, place.port, self._token, self._run, center and center.entry(),
        )  # fmt: skip
        try:
            registry.add(entry, self._settings.watch_dir)
            self._entry = entry
        except (OSError, MatexError) as error:
            if self._settings.notes:
                self._world.log(f"matex-tf top cannot find this job: {error}")

    async def _hear(self, connection: socket.socket, door: ports.Door) -> None:
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection, limit=_MOST_BYTES)
        number, ended = -1, False
        try:
            line = await asyncio.wait_for(reader.readline(), ports.GREETING_SECONDS)
            said = json.loads(line) if line else {}
            if not isinstance(said, dict) or not hmac.compare_digest(str(said.get("token", "")), self._token):
                return
            door.known(connection)
            if said.get("ask") == "state":
                writer.write(json.dumps(self._state.public()).encode())
                await asyncio.wait_for(writer.drain(), _SECONDS_TO_GREET)
                return
            if "ask" in said and self._world.growth is not None:
                self._world.growth.answer(said, connection.dup())
                return
            number = int(said["rank"])
            while line := await reader.readline():
                said = json.loads(line)
                if said.get("bye"):
                    ended = True
                    return
                self._state.heard(said)
        except (OSError, ValueError, KeyError, TypeError, TimeoutError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # whoever it was is gone, or was none of ours; or this rank ends
        finally:
            if number >= 0 and not self._stopping.is_set():
                self._state.left(number, ended, self._places[number].host if number < self._world_size else "")
            door.known(connection)
            writer.close()


class _Held(set[socket.socket]):
    """Of a run: a child that is forked must not hold them."""


def _close_in_child() -> None:
    for one in run_state.part(_Held):
        one.close()


os.register_at_fork(after_in_child=_close_in_child)
