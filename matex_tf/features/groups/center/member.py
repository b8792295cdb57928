"""A group's rank and the center of one training: the weights as one row of numbers, and this rank's part of them."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from matex_tf.core.ports import addresses
from matex_tf.core.world import World
from matex_tf.features.groups.center import terms, wire
from matex_tf.features.groups.center.client import Client, Dealer, Lines, Servers
from matex_tf.features.groups.center.schedule import Supply, parts_at_once
from matex_tf.features.groups.center.service import Service
from matex_tf.settings import Settings

if TYPE_CHECKING:
    from matex_tf.features.groups.membership import Groups

TOKEN_BYTES = 32
_Answer = TypeVar("_Answer")

#: For how long groups that have joined are waited for at the end of an epoch, where --stall-seconds says nothing.
SECONDS = 60


class Center:
    """The servers of a world, as one of its ranks knows them.

    Attributes:
        servers: where they are.
        service: that of this rank; None where servers are ranks of their own.
        trainings: how many there have been.
    """

    def __init__(self, servers: Servers, service: Service | None, lines: Sequence[Connection] = ()):
        """Args: lines: connections that are open as long as this rank trains."""
        self.servers, self.service, self.trainings = servers, service, 0
        self._lines = lines

    def entry(self) -> dict[str, Any]:
        """What a job file says of it, for groups that join: where the servers are, and their token."""
        return {"addresses": [list(one) for one in self.servers.addresses], "token": self.servers.token.hex()}

    def close(self) -> None:
        """Serve no more, and be served no more."""
        if self.service is not None:
            self.service.close()
        for line in self._lines:
            line.close()


def center_of(world: World, network: str) -> Center:
    """The center of a world. Where no rank serves yet, each that trains begins to. Collective at first.

    Args:
        network: as `--center-network` has it.

    Raises:
        SettingError: a host has no address for it.
    """
    if world.center is None:
        token = world.broadcast(os.urandom(TOKEN_BYTES), "draw a token for the center")
        service = serve(world, token, network)
        where = world.allgather(service and service.address, "tell where the center is")
        world.center = Center(Servers(where, token), service)
    found: Center = world.center
    return found


def serve(world: World, token: bytes, network: str, first: int = 0) -> Service | None:
    """Begin to serve on this rank; None on one that does not. Collective.

    Args:
        token: of the job, which clients have to know.
        network: see `wire.address_of`.
        first: the first rank that serves.

    Raises:
        SettingError: this host has no address there.
        MatexError: nothing can listen there.
    """
    known = addresses()
    everyone = world.allgather(known, "tell on which networks they are")
    if world.rank < first:
        return None
    return Service(wire.address_of(known, everyone, network, len(world.nodes) == 1), token, log=world.log)


class Member:
    """What a rank of a group does with the center in one training.

    Attributes:
        groups: those of this world that train.
        count: how many train in this epoch, with those that have joined; each batch has so many parts.
        ahead: how many steps of this epoch the slowest other group had made when a group that joins began it.
        client: for the thread that meets the center.
        size: of the numbers.
        epochs: how many have begun, counted alike on all ranks.
        shown: the center where the model has it in place of the group's weights, so that the script sees it; else None.
    """

    #: More steps than an epoch has: groups begin each epoch side by side, whatever each has done of the one before.
    EPOCH = 1 << 32

    def __init__(
        self,
        groups: Groups,
        network: str,
        settings: Settings,
        variables: Sequence[Any],
        state: Sequence[Any] = (),
    ):
        """Begin a training at the weights as they are, the same on all ranks. Collective.

        Args:
            groups: those of the world.
            network: that of the center, see `--center-network`.
            variables: of floating point, of Keras or TensorFlow.
            state: other variables of which a group that joins gets the values of the first rank.
        """
        world = groups.whole
        self._world, self._settings = world, settings
        self._variables, self._state = list(variables), list(state)
        center = center_of(world, network)
        center.trainings += 1
        self._training = center.trainings
        self.groups = groups
        self.count, self.ahead = self.groups.count, 0
        self._shapes = [(held.shape, held.dtype) for held in (np.asarray(one.numpy()) for one in self._variables)]
        self.size = sum(math.prod(shape) for shape, _ in self._shapes)
        ranks = self.groups.world
        self._part = ranks.rank * self.size // ranks.size, (ranks.rank + 1) * self.size // ranks.size
        self._threads = ThreadPoolExecutor(1, "matex_tf center"), ThreadPoolExecutor(1, "matex_tf parts")
        self._parts: deque[Future[int]] = deque()  # that this group trains on next
        self._supply = Supply()
        self.epochs = 0
        self._own: np.ndarray | None = None
        self.shown: np.ndarray | None = None
        self._enter(center, settings.codec)

    def _enter(self, center: Center, codec: str) -> None:
        """Offer the weights, where nobody has yet."""
        name = f"{self.groups.number}.{self.groups.world.rank}"
        self._lines = Lines(center.servers)
        first = self._world.rank
        self.client = Client(center.servers, self._training, name, self.values(), self._part, codec, first=first)
        self._dealer = Dealer(center.servers, self._training, str(self.groups.number))

    def values(self) -> np.ndarray:
        """The weights of the group, float32 and flat."""
        return np.concatenate([np.asarray(one.numpy(), np.float32).reshape(-1) for one in self._variables])

    def assign(self, values: np.ndarray) -> None:
        """Set the weights of the group."""
        first = 0
        for variable, (shape, dtype) in zip(self._variables, self._shapes, strict=True):
            size = math.prod(shape)
            variable.assign(values[first : first + size].reshape(shape).astype(dtype, copy=False))
            first += size

    def part(self, values: np.ndarray) -> np.ndarray:
        """Of all numbers, a copy of those that this rank exchanges for its group."""
        return values[self._part[0] : self._part[1]].copy()

    def gather(self, part: np.ndarray) -> np.ndarray:
        """All numbers, from the parts of the group's ranks. Collective over the group."""
        ranks = self.groups.world
        return part if ranks.is_single else ranks.allgather_rows(part, "put together what they have of the center")

    def all_have(self, here: bool) -> bool:
        """Whether something is so on each rank of the group. Collective over the group."""
        ranks = self.groups.world
        if ranks.is_single:
            return here
        return int(ranks.allreduce(np.array([here], np.int64), "meet the center")[0]) == ranks.size

    def later(self, call: Any, *args: Any) -> Future[np.ndarray]:
        """Have the client do something while this rank trains on."""
        return self._threads[0].submit(call, *args)

    def begin_epoch(self) -> None:
        """The parts of batches are dealt out anew. On all ranks."""
        self.answer_of(lambda: [part.result() for part in self._parts])  # they are of the epoch before
        self._parts.clear()
        self._supply.begin_epoch()
        self.epochs += 1
        self._open_epoch()
        # Of the first batch of a training each group takes a part by itself.
        self._dealer.begin_epoch(self.epochs, self.count if self.epochs == 1 else 0, parts_at_once(self.count))

    def _open_epoch(self) -> None:
        """Tell the roster that an epoch begins, and hear how many groups train in it. Collective."""
        state = [np.asarray(one.numpy(), np.float64).reshape(-1) for one in self._state]
        body = np.concatenate(state).tobytes() if state else b""
        known = terms.of(self._settings, self._variables)
        self.count = self._of_roster("begin", body, groups=self.groups.count, terms=known)["count"]

    def end_epoch(self, batches: int) -> None:
        """All parts of this epoch have been taken. Groups that have joined and are at one are waited for. Collective.

        Args:
            batches: of the epoch.
        """
        epoch, limit = f"{self._training}.{self.epochs}", float(self._settings.stall_seconds or SECONDS)
        if self._settings.stall_abort_seconds:  # after which a rank that waits here would count as dead
            limit = min(limit, self._settings.stall_abort_seconds / 2)
        self._of_roster("used_up", of=epoch, parts=batches * self.count, limit=limit)

    def goes_on(self) -> bool:
        """Whether the training goes on after this epoch, where that is for another job to say. Collective there."""
        return True

    def end(self) -> None:
        """The training has ended. Collective."""
        self._of_roster("end")

    def _of_roster(self, what: str, body: bytes = b"", **words: Any) -> dict[str, Any]:
        """What the roster answers the first rank, on all ranks; a rank that takes its place asks again."""
        head = {"ask": "roster", "what": what, "training": self._training, "epoch": self.epochs, **words}

        def ask() -> dict[str, Any]:
            answer = None
            self._world.on_wait()  # the roster may wait for a group that waits for the next step of this one
            while self._world.rank == 0 and answer is None:
                answer = self._lines.answer(self._lines.send(0, head, body))
            found: dict[str, Any] = self._world.broadcast(answer and answer[0], "ask which groups train")
            return found

        return self._world.run_atomically(ask)

    def part_at_hand(self) -> int:
        """The part that this group trains on next: its batch times the parts of a batch, and which of these it is."""
        if not self._parts:  # the first of an epoch
            self._ask_for_parts()
        elif not self._parts[0].done():
            self._supply.waited()
        return self.answer_of(self._parts[0].result)

    def take_part(self) -> None:
        """Ask for the next ones, while this one is trained on."""
        self._parts.popleft()
        self._ask_for_parts()

    def _ask_for_parts(self) -> None:
        while len(self._parts) < self._supply.ahead:
            self._parts.append(self._threads[1].submit(self._dealer.next_part))

    def answer_of(self, call: Callable[[], _Answer]) -> _Answer:
        """What this rank gets from the servers, where each rank of the group asks them something."""
        return call()

    def show(self) -> None:
        """Let the model have the center, the same on all ranks. Collective over the world; nothing may be under way."""
        if self.shown is None:
            self._own = self.values()
        self._world.barrier("meet at the center")
        center = self.gather(self.answer_of(self.client.pull).copy())
        self.assign(center)
        self.shown = self.values()  # as variables of short floats have them
        self._world.barrier("have the center")

    def hide(self, own: bool = True) -> None:
        """Before a step: let the model have the group's weights again. Where the script has set weights, let it keep
        those, and the center be at them too.

        Args:
            own: whether the group has weights of its own; else it goes on with the center.
        """
        shown, self.shown = self.shown, None
        if shown is None:
            return
        now = self.values()
        if not np.array_equal(now, shown, equal_nan=True):
            self.answer_of(lambda: self.client.reset(self.part(now)))
        elif own:
            assert self._own is not None
            self.assign(self._own)

    def waits_for_nobody(self, call: Callable[[], None]) -> None:
        """Have `call` called before this rank waits for those of other groups."""
        self._world.on_wait = call

    def close(self) -> None:
        """Leave the training."""
        self._world.on_wait = lambda: None
        for threads in self._threads:
            threads.shutdown()
        self.client.close()
        self._dealer.close()
        self._lines.close()
