"""What the ranks send to one another where they make batches in turn, as transfers of a `Messenger`."""

from __future__ import annotations

import numpy as np

from matex_tf.exchange.network.algorithms import Steps
from matex_tf.exchange.network.lane import Lane
from matex_tf.exchange.network.messenger import PIECE

_TAG, _MEETING_TAG = 0, 1


def meeting(lane: Lane, others: list[int]) -> Steps:
    """Wait for each other."""
    heard = np.zeros((len(others), 1), np.uint8)
    sent = [request for rank in others for request in lane.send(np.zeros(1, np.uint8), rank, _MEETING_TAG)]
    received = [lane.receive(heard[place], rank, _MEETING_TAG) for place, rank in enumerate(others)]
    yield [*sent, *(request for requests in received for request in requests)]


def sending(lane: Lane, messages: dict[int, np.ndarray]) -> Steps:
    """Send bytes to each of these ranks."""
    sizes = {rank: np.array([message.size], np.int64) for rank, message in messages.items()}
    yield [request for rank, size in sizes.items() for request in lane.send(size, rank, _TAG)]
    longest = max(message.size for message in messages.values())
    for low in range(0, longest, PIECE):
        here = slice(low, low + PIECE)
        yield [
            request
            for rank, message in messages.items()
            if low < message.size
            for request in lane.send(message[here], rank, _TAG)
        ]


def receiving(lane: Lane, owner: int, received: list[np.ndarray]) -> Steps:
    """Receive what a rank sends; it is added to `received`."""
    size = np.empty(1, np.int64)
    yield lane.receive(size, owner, _TAG)
    message = np.empty(int(size[0]), np.uint8)
    for low in range(0, message.size, PIECE):
        yield lane.receive(message[low : low + PIECE], owner, _TAG)
    received.append(message)
