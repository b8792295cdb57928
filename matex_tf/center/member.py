"""A group's rank and the center of one training: the weights as one row of numbers, and this rank's part of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from matex_tf.center import wire
from matex_tf.center.client import Client, Dealer, Servers
from matex_tf.center.service import Service
from matex_tf.core import groups
from matex_tf.core.addresses import addresses
from matex_tf.core.world import World
from matex_tf.settings import Settings

if TYPE_CHECKING:
    from matex_tf.core.groups import Groups

TOKEN_BYTES = 32


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
        where = world.allgather(service.address, "tell where the center is")
        world.center = Center(Servers(where, token), service)
    found: Center = world.center
    return found


def serve(world: World, token: bytes, network: str) -> Service:
    """Begin to serve on this rank. Collective."""
    known = addresses()
    everyone = world.allgather(known, "tell on which networks they are")
    return Service(wire.address_of(known, everyone, network, len(world.nodes) == 1), token)


class Member:
    """What a rank of a group does with the center in one training.

    Attributes:
        groups: those that train.
        client: for the thread that meets the center.
        size: of the numbers.
        epochs: how many have begun, counted alike on all ranks.
        shown: the center where the model has it in place of the group's weights, so that the script sees it; else None.
    """

    def __init__(self, world: World, settings: Settings, variables: Sequence[Any]):
        """Begin a training at the weights as they are, the same on all ranks. Collective.

        Args:
            variables: of floating point, of Keras or TensorFlow.
        """
        self._world = world
        self._variables = list(variables)
        center = center_of(world, settings.center_network)
        center.trainings += 1
        self.groups: Groups = groups.of(world, settings.groups)
        values = self.values()
        self.size = values.size
        ranks = self.groups.world
        self._part = ranks.rank * self.size // ranks.size, (ranks.rank + 1) * self.size // ranks.size
        name = f"{self.groups.number}.{ranks.rank}"
        self.client = Client(center.servers, center.trainings, name, values, self._part, settings.codec)
        self._dealer = Dealer(center.servers, center.trainings, self.groups.number)
        self._threads = ThreadPoolExecutor(1, "matex_tf center"), ThreadPoolExecutor(1, "matex_tf parts")
        self._next: Future[int] | None = None
        self.epochs = 0
        self._own: np.ndarray | None = None
        self.shown: np.ndarray | None = None

    def values(self) -> np.ndarray:
        """The weights of the group, float32 and flat."""
        return np.concatenate([np.asarray(one.numpy(), np.float32).reshape(-1) for one in self._variables])

    def assign(self, values: np.ndarray) -> None:
        """Set the weights of the group."""
        first = 0
        for variable in self._variables:
            held = variable.numpy()
            variable.assign(values[first : first + held.size].reshape(held.shape).astype(held.dtype))
            first += held.size

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
        if self._next is not None:
            self._next.result()  # its answer is of the epoch before
        self.epochs += 1
        self._dealer.begin_epoch(self.epochs)
        self._next = None

    def part_at_hand(self) -> int:
        """The part that this group trains on next: its batch times the parts of a batch, and which of these it is."""
        if self._next is None:
            self._next = self._threads[1].submit(self._dealer.next_part)
        return self._next.result()

    def take_part(self) -> None:
        """Ask for the next one, while this one is trained on."""
        self._next = self._threads[1].submit(self._dealer.next_part)

    def show(self) -> None:
        """Let the model have the center, the same on all ranks. Collective over the world; nothing may be under way."""
        if self.shown is None:
            self._own = self.values()
        self._world.barrier("meet at the center")
        center = self.gather(self.client.pull().copy())
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
            self.client.reset(self.part(now))
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
