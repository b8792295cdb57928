"""The interface of a transport: ranks that can send to one another. Names are those of MPI.

Nothing outside of this room knows which transport there is. `mpi` has the one on MPI; `messages` makes the collectives
for a transport that has messages alone; `registry` chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from matex_tf.core.waiting import wait_until
from matex_tf.errors import CommunicationError

#: Bytes of a message between ranks: who has more to send sends several, and many can be on their way at once.
MESSAGE_BYTES = 1 << 20
#: The largest tag of a message.
LARGEST_TAG = 32767

#: How often a request is asked for before the core is given away: other ranks may come a few microseconds later.
_ASKED_AT_ONCE = 100

Operation = Literal["sum", "max"]


class Request(Protocol):
    """Something that is under way."""

    def test(self) -> bool:
        """Whether it is complete; asking moves it on. Once it is, asking again says so again.

        Raises:
            CommunicationError: nothing comes of it.
        """


class Communicator(ABC):
    """Ranks that can reach one another, numbered from 0, as one of them sees it.

    Collectives are called by every rank, in the same order. Arrays are C-contiguous. All methods may be called from any
    thread, but the collectives of one communicator from one thread at a time.

    Each method raises `CommunicationError` where it fails: a rank may have died. `messages.MessageCommunicator` has all
    of this for a class with `isend`, `irecv`, `among` and `abort`.

    Attributes:
        rank, size: this rank, and the number of ranks.
        can_shrink: whether `revoke`, `shrink` and `agree` work, so that the others can go on where a rank has died.
        can_grow: whether `start` and `extend` work, so that ranks can come.
        exit_may_hang: whether a process may wait for ever for ranks that are gone if it ends as Python ends.
    """

    rank: int
    size: int
    can_shrink: bool = False
    can_grow: bool = False
    exit_may_hang: bool = False

    @abstractmethod
    def isend(self, data: np.ndarray, to: int, tag: int) -> Request:
        """Begin to send a message; `data` must not change until that is complete.

        Args:
            data: flat, uint8; at most `MESSAGE_BYTES`.
            to: a rank.
            tag: 0 to `LARGEST_TAG`.
        """

    @abstractmethod
    def irecv(self, data: np.ndarray, source: int, tag: int) -> Request:
        """Begin to receive a message. Of several with one tag the first that was sent is for the first that began.

        Args:
            data: flat, uint8; the message is as long, or shorter.
        """

    @abstractmethod
    def ibarrier(self) -> Request:
        """Begin to wait for all ranks."""

    @abstractmethod
    def iallreduce(self, array: np.ndarray, total: np.ndarray, op: Operation = "sum") -> Request:
        """Begin to sum an array (or to find the maximum of each element) over all ranks.

        Args:
            array: of the same shape and dtype on every rank; must not change until that is complete.
            total: of that shape and dtype, for the result.
        """

    @abstractmethod
    def allreduce(self, array: np.ndarray, total: np.ndarray) -> None:
        """Sum an array over all ranks; `total` may be the same array. The result is the same on every rank.

        Args:
            array: of the same shape and dtype on every rank; integers, float32, float64 or complex numbers.
            total: of that shape and dtype, for the result.
        """

    @abstractmethod
    def bcast(self, value: Any, root: int = 0) -> Any:
        """`root`'s value, any picklable object, on every rank.

        Args:
            value: on other ranks than `root` it is not looked at.
            root: a rank of this communicator.
        """

    @abstractmethod
    def bcast_array(self, array: np.ndarray, root: int = 0) -> None:
        """Overwrite an array by `root`'s, of the same shape and dtype.

        Args:
            array: contiguous; on `root` it stays as it is.
        """

    @abstractmethod
    def allgather(self, value: Any) -> list[Any]:
        """Every rank's value, any picklable object, in the order of ranks."""

    @abstractmethod
    def scatter(self, values: Sequence[Any] | None, root: int = 0) -> Any:
        """This rank's own of `root`'s values, one picklable object for each rank; the others pass None.

        Args:
            values: on `root` one for each rank, in the order of ranks.
            root: a rank of this communicator.
        """

    @abstractmethod
    def allgather_rows(self, array: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """Arrays joined along the first axis, in the order of ranks; and the rows of each, 0 or more.

        Args:
            array: of any dtype without objects; the same on all ranks, but for the number of rows.
        """

    @abstractmethod
    def alltoall_rows(self, array: np.ndarray, splits: Sequence[int]) -> tuple[np.ndarray, list[int]]:
        """Give `splits[r]` rows of an array to rank r; what this rank receives, and the rows from each rank.

        Args:
            array: of any dtype without objects; of the same dtype and shape of rows on all ranks.
            splits: one number of rows for each rank, 0 or more; their sum is `len(array)`.
        """

    @abstractmethod
    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator of the ranks that give the same color. Collective.

        Args:
            color: 0 or more; None for a rank that takes part in none, which gets None.
            key: the order of the ranks in it; by rank where that is equal.
        """

    @abstractmethod
    def free(self) -> None:
        """Give the communicator back. Collective; more than one call does no harm."""

    @property
    @abstractmethod
    def is_free(self) -> bool:
        """Whether it was given back."""

    @abstractmethod
    def abort(self, code: int) -> None:
        """End all ranks of the job with this exit code; may return where that is left to this process."""

    def barrier(self) -> None:
        """Wait for all ranks."""
        wait(self.ibarrier())

    def sendrecv(self, data: np.ndarray, to: int, received: np.ndarray, source: int) -> None:
        """Send an array to one rank and receive one from another, at the same time.

        Args:
            data: of any dtype and length; contiguous.
            received: overwritten by as many bytes as are sent to this rank; contiguous.
            to, source: ranks of this communicator.
        """
        receives = [self.irecv(message, source, 0) for message in messages_of(received)]
        wait_all([*receives, *(self.isend(message, to, 0) for message in messages_of(data))])

    def revoke(self) -> None:
        """Let no rank wait in this communicator any longer: what is under way in it fails, on every rank."""
        raise CommunicationError(f"{type(self).__name__} cannot go on without a rank.")

    def shrink(self) -> Communicator:
        """A communicator of the ranks that are alive. Collective among them."""
        raise CommunicationError(f"{type(self).__name__} cannot go on without a rank.")

    def agree(self, flag: bool) -> bool:
        """Whether every rank that is alive says yes, the same on each. Collective among them."""
        raise CommunicationError(f"{type(self).__name__} cannot go on without a rank.")

    def start(self, words: Sequence[str], told: Any) -> Any:
        """Start a program as a rank of a world of its own, and wait until it has called `arrive`; for one rank.

        Args:
            words: its command line.
            told: any picklable object, which it gets.

        Returns:
            The bridge to it, see `extend`.
        """
        raise CommunicationError(f"{type(self).__name__} cannot start a rank.")

    def extend(self, bridge: Any, leader: int = 0) -> Communicator:
        """A communicator of the ranks of this one and of another one, whose numbers follow. Collective over both.

        Args:
            bridge: between the two, on a rank of this one and on that which has arrived; None on others.
            leader: the rank of this one that has it.
        """
        raise CommunicationError(f"{type(self).__name__} cannot take in a rank.")


def messages_of(data: np.ndarray) -> list[np.ndarray]:
    """An array as messages: uint8, of `MESSAGE_BYTES` and one of the rest; one without bytes for an empty array."""
    flat = data.reshape(-1).view(np.uint8)
    return [flat[start : start + MESSAGE_BYTES] for start in range(0, max(flat.size, 1), MESSAGE_BYTES)]


def wait(request: Request) -> None:
    """Wait until a request is complete."""
    for _ in range(_ASKED_AT_ONCE):
        if request.test():
            return
    wait_until(request.test)


def wait_all(requests: Sequence[Request]) -> None:
    """Wait until all requests are complete."""
    for request in requests:
        wait(request)
