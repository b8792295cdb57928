"""Lines between ranks of different hosts, while others connect to the same ports."""

import contextlib
import socket
import threading
import time

from matex_tf.faults.peer_sockets import _STRANGERS, _TOKEN_BYTES, _Meeting


def test_silent_strangers():
    """Who connects and says nothing takes no more than a few descriptors, and ranks meet all the same."""
    token, found = bytes(range(_TOKEN_BYTES)), {}
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        ports = [[listener.getsockname()], []]

        def meet(rank, listeners):
            made = _Meeting(rank, token, [1 - rank], listeners).make(ports, time.monotonic() + 100)
            found[rank] = opened.enter_context(made[1 - rank])

        first = threading.Thread(target=meet, args=(0, [listener]))
        first.start()
        strangers = [opened.enter_context(socket.create_connection(ports[0][0], 50)) for _ in range(3 * _STRANGERS)]
        for stranger in strangers[: 2 * _STRANGERS - 1]:
            assert stranger.recv(1) == b"", "it is still held"
        second = threading.Thread(target=meet, args=(1, []))
        second.start()
        for thread in (first, second):
            thread.join(100)
        found[0].setblocking(True)
        found[1].sendall(b"x")
        assert found[0].recv(1) == b"x"
