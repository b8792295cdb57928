"""A piece of the center, and what a group does to it: the formulas, with no network and no threads.

Elastic averaging (EASGD, arXiv 1412.6651, equations 5 and 6, asynchronous as in its Algorithm 1): a group at w and the
center c move towards each other by d = alpha (w - c): w <- w - d, c <- c + d. Their sum stays.

Parameter server (Downpour, Dean et al. 2012): a group adds to c by how much its optimizer has moved its weights, and
gets c.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from matex_tf.exchange.network.codec import Codec


class Piece:
    """Some of the numbers of the center.

    With a codec both sides of a connection remember what one has told the other, and what travels is the distance from
    that: so what a codec could not say is said next time.

    Attributes:
        values: float32, flat.
        given: how often a script had set weights when each of them was given; -1 for those that nobody has given.
    """

    def __init__(self, size: int):
        self.values = np.zeros(size, np.float32)
        self.given = np.full(size, -1, np.int32)
        self._told: dict[tuple[Hashable, int], np.ndarray] = {}

    def has(self, low: int, high: int) -> bool:
        """Whether the numbers from `low` to `high` are known."""
        return bool((self.given[low:high] >= 0).all())

    def offer(self, low: int, values: np.ndarray, reset: int = 0) -> None:
        """Take values from `low` on, where there are none yet, or none since a script has set weights.

        Args:
            reset: how often the script has set weights.
        """
        here = slice(low, low + values.size)
        new = self.given[here] < reset
        new |= self.given[here] < 0
        self.values[here][new] = values[new]
        self.given[here][new] = reset

    def remember(self, client: Hashable, low: int, values: np.ndarray) -> None:
        """With a codec: what a client and the server both know from now on.

        Args:
            client: its name.
            low: where the numbers begin.
            values: float32, flat; copied.
        """
        self._told[client, low] = values.copy()

    def forget(self, client: Hashable) -> None:
        """This client will not come back."""
        for key in [key for key in self._told if key[0] == client]:
            del self._told[key]

    def elastic(self, low: int, high: int, alpha: float, wire: bytes, codec: Codec | None, client: Hashable) -> bytes:
        """Move towards a group's weights.

        Args:
            low, high: which numbers.
            alpha: the part of the distance that both sides move.
            wire: the weights w; with a codec how far they are from what this client has told before.

        Returns:
            d, by which the group shall move.
        """
        c = self.values[low:high]
        if codec is None:
            d = np.frombuffer(wire, np.float32) - c
            d *= np.float32(alpha)
            c += d
            return d.tobytes()
        told = self._told[client, low]
        codec.add(np.frombuffer(wire, np.uint8), told)
        d = (told - c) * np.float32(alpha)
        said = np.empty(codec.nbytes(d.size), np.uint8)
        codec.encode(d, said)
        codec.add(said, c)  # what the group reads, so that the sum of both stays
        return said.tobytes()

    def add(self, low: int, high: int, wire: bytes, codec: Codec | None) -> None:
        """Add how far a group has moved.

        Args:
            low, high: which numbers.
            wire: how far, as float32 or as the codec has encoded it.
            codec: None for none.
        """
        if codec is None:
            self.values[low:high] += np.frombuffer(wire, np.float32)
        else:
            codec.add(np.frombuffer(wire, np.uint8), self.values[low:high])

    def tell(self, low: int, high: int, codec: Codec | None, client: Hashable) -> bytes:
        """The numbers, as bytes of float32; with a codec how far they are from what a client knows, encoded.

        Args:
            low, high: which numbers.
            codec: None for none.
            client: its name; does not matter without a codec.
        """
        if codec is None:
            return self.values[low:high].tobytes()
        told = self._told[client, low]
        said = np.empty(codec.nbytes(told.size), np.uint8)
        codec.encode(self.values[low:high] - told, said)
        codec.add(said, told)
        return said.tobytes()
