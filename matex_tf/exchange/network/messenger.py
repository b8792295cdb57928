"""Messages between two ranks that travel while both compute: a thread that drives them, on a communicator of its own.

A transfer is a generator, as in `algorithms`: it starts messages, yields them, and is continued when
they are complete. MPI moves bytes only while someone asks it to; that is what the thread is for.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.core.transport.communicator import MESSAGE_BYTES, Communicator, Request
from matex_tf.core.waiting import LONGEST_SLEEP, backoff
from matex_tf.exchange.network.algorithms import Peers, Steps
from matex_tf.exchange.network.lane import Lane
from matex_tf.state import run_state

_LOOK_SECONDS = 0.5
#: Bytes of a message, and how many of a transfer, and transfers, are on their way at a time. What else the ranks say to
#: one another goes by the same wire, and waits for what was given to it before.
PIECE, _AHEAD, _AT_ONCE = MESSAGE_BYTES, 2, 2


class _LeftBehind(list[Any]):
    """Of a run: messages that nobody waits for any more, since a rank has died.

    MPI may still read and write the memory they lie in.
    """


class Transfer:
    """One transfer that was posted."""

    def __init__(self, steps: Steps):
        self._steps = steps
        self._over = threading.Event()
        self.error: Exception | None = None

    def travel(self) -> Steps:
        """The transfer, and at its end the news that it is over."""
        yield from self._steps
        self._over.set()

    def fail(self, error: Exception) -> None:
        """Nothing comes of this transfer."""
        self.error = self.error or error
        self._over.set()

    def wait(self, look: Callable[[float], None]) -> None:
        """Wait until the transfer is over.

        Args:
            look: called now and then with the seconds waited so far; may raise, and so end the wait.

        Raises:
            Exception: what the transfer raised.
        """
        begin = time.perf_counter()
        while not self._over.wait(_LOOK_SECONDS):
            look(time.perf_counter() - begin)
        if self.error is not None:
            raise self.error


class Messenger:
    """The thread, and the lane that it drives."""

    def __init__(self, comm: Communicator, longest_sleep: float = LONGEST_SLEEP):
        """Begin.

        Args:
            comm: what this gives back when it is closed.
            longest_sleep: seconds between two looks at what is under way, where nothing has come for a while.
        """
        self.lane = Lane(comm)
        self._longest_sleep = longest_sleep
        self._abandoned = False
        self._posted: queue.SimpleQueue[Transfer | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="matex_tf messenger", daemon=True)
        self._thread.start()

    def post(self, steps: Steps) -> Transfer:
        """Begin a transfer; does not wait. Transfers begin in the order in which they are posted."""
        transfer = Transfer(steps)
        self._posted.put(transfer)
        return transfer

    def close(self) -> None:
        """End the thread and give the communicator back; nothing may be under way."""
        self.abandon()
        self.lane.close()

    def abandon(self) -> None:
        """End the thread, and leave the communicator and what is under way as they are: a rank may have died. Needs no
        other rank; more than one call does no harm."""
        self._abandoned = True
        self._posted.put(None)
        self._thread.join()

    def _run(self) -> None:
        under_way: list[tuple[Transfer, Steps, Sequence[Request]]] = []
        begin = time.perf_counter()
        while True:
            while not under_way or (len(under_way) < _AT_ONCE and not self._posted.empty()):
                transfer = self._posted.get()
                if transfer is None:
                    break
                under_way.append((transfer, transfer.travel(), []))
                begin = time.perf_counter()
            if self._abandoned:
                run_state.part(_LeftBehind).extend(under_way)
                return
            still: list[tuple[Transfer, Steps, Sequence[Request]]] = []
            for transfer, steps, messages in under_way:
                try:
                    if all([message.test() for message in messages]):
                        begin = time.perf_counter()
                        messages = next(steps)
                    still.append((transfer, steps, messages))
                except StopIteration:
                    pass
                except Exception as error:
                    run_state.part(_LeftBehind).append(
                        (messages, error)
                    )  # whose traceback has those that were begun before
                    transfer.fail(error)
            under_way = still
            if under_way:
                backoff(begin, self._longest_sleep)


def pieces(nbytes: int) -> int:
    """How many messages a transfer of so many bytes takes."""
    return max(1, -(-nbytes // PIECE))


def swap(lane: Peers, mine: np.ndarray, theirs: np.ndarray, to: int, source: int, tag: int) -> Steps:
    """Send a flat array to one rank and receive another of the same size from another.

    Args:
        lane: the ranks that take part.
        mine: what is sent; it must not change until that is complete.
        theirs: overwritten by what is received; contiguous.
        tag: of all these messages.
    """
    step, on_their_way = PIECE // mine.itemsize, []
    for low in range(0, pieces(mine.nbytes) * step, step):
        here = slice(low, low + step)
        on_their_way.append([*lane.receive(theirs[here], source, tag), *lane.send(mine[here], to, tag)])
        if len(on_their_way) == _AHEAD:
            yield on_their_way.pop(0)
    yield from on_their_way
