"""The port of the center, and those who connect to it and say nothing; see tests/unit/test_ports.py."""

import contextlib
import socket

import doors

from matex_tf.core import ports
from matex_tf.features.groups.center import wire
from matex_tf.features.groups.center.service import Service

TOKEN = b"0123456789abcdef"


@contextlib.contextmanager
def center(folder):
    """The port of a server of the center."""
    service = Service("127.0.0.1", TOKEN)

    def ask():
        connection = wire.connect(service.address, TOKEN)
        wire.send(connection, {"ask": "part", "epoch": "1.1", "group": "a", "number": 0, "seen": 0, "count": 1})
        assert wire.receive(connection)[0] == {"part": 0, "bytes": 0}
        connection.close()
        return doors.ANSWER

    try:
        yield service.address[1], ask
    finally:
        service.close()


def test_many_who_say_nothing(monkeypatch, tmp_path):
    """The oldest are sent away as others come, and whoever belongs to the job gets its answer all the while."""
    doors.check_many(monkeypatch, tmp_path, center)


def test_one_who_says_nothing(monkeypatch, tmp_path):
    """It is sent away after a while; who has shown that it belongs to the job may be silent."""
    doors.check_silent(monkeypatch, tmp_path, center)
    monkeypatch.setattr(ports, "GREETING_SECONDS", 0.2)
    with center(tmp_path) as (port, _):
        known = wire.connect(("127.0.0.1", port), TOKEN)
        with socket.create_connection(("127.0.0.1", port)) as line:
            assert doors.is_closed(line, 60)
        assert not known.poll(0.5)
        wire.send(known, {"ask": "part", "epoch": "1.1", "group": "b", "number": 0, "seen": 0, "count": 1})
        assert wire.receive(known)[0]["part"] == 0
        known.close()
