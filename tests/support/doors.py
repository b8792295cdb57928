"""Whether a port can be held by those who connect to it and say nothing.

A door is a context: it gives a port of a job, and a function that asks something there and returns the answer.
"""

import contextlib
import select
import socket

from matex_tf.core import ports
from matex_tf.watching import reporter

MOST = 8
ANSWER = "train.py"


def is_closed(line, seconds):
    """Whether the other side has closed a connection."""
    if not select.select([line], [], [], seconds)[0]:
        return False
    try:
        while part := line.recv(1 << 16):  # the center begins with a challenge
            del part
            if not select.select([line], [], [], seconds)[0]:
                return False
        return True
    except ConnectionError:
        return True


def check_many(monkeypatch, folder, door):
    """The oldest are sent away as others come, and whoever belongs to the job gets its answer all the while."""
    monkeypatch.setattr(ports, "_MOST", MOST, raising=False)
    monkeypatch.setattr(ports, "GREETING_SECONDS", 1000.0, raising=False)
    monkeypatch.setattr(reporter, "_SECONDS_TO_GREET", 1000.0)
    with door(folder) as (port, ask), contextlib.ExitStack() as stack:
        lines = []
        for _ in range(4):
            new = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2 * MOST)]
            lines += new
            for line in lines[:-MOST]:
                assert is_closed(line, 60)
            assert ask() == ANSWER
        assert not any(is_closed(line, 0) for line in lines[-MOST // 2 :])


def check_silent(monkeypatch, folder, door):
    """It is sent away after a while; who has shown that it belongs to the job may be silent."""
    monkeypatch.setattr(ports, "GREETING_SECONDS", 0.2, raising=False)
    with door(folder) as (port, ask), socket.create_connection(("127.0.0.1", port)) as line:
        assert is_closed(line, 60)
        assert ask() == ANSWER
