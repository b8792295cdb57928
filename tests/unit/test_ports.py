"""Ports of a job, at which somebody knocks who says nothing."""

import contextlib
import select
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest

from matex_tf import settings
from matex_tf.core import ports
from matex_tf.core.world import World
from matex_tf.features.groups.center import wire
from matex_tf.features.groups.center.service import Service
from matex_tf.watching import prometheus, registry, reporter
from matex_tf.watching.meter import Meter

TOKEN = b"0123456789abcdef"
MOST = 8


@contextlib.contextmanager
def reports(folder):
    """The port for reports, and a question to it."""
    chosen = settings.Settings(watch_dir=str(folder))
    found = reporter.Reporter(World(), Meter(), "train.py", chosen, False, [], {"words": ["train.py"]})
    entry = None
    while entry is None:  # the test has a time limit
        entry = next(iter(registry.entries(chosen.watch_dir)), None)
    try:
        yield entry.port, lambda: registry.ask(entry)["script"]
    finally:
        found.stop()


@contextlib.contextmanager
def metrics(folder):
    """The port of Prometheus."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    prometheus.Metrics(str(port)).listen()

    def ask():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            answer.read()
        return "train.py"

    yield port, ask


@contextlib.contextmanager
def center(folder):
    """The port of a server of the center."""
    service = Service("127.0.0.1", TOKEN)

    def ask():
        connection = wire.connect(service.address, TOKEN)
        wire.send(connection, {"ask": "part", "epoch": "1.1", "group": "a", "number": 0, "seen": 0, "count": 1})
        assert wire.receive(connection)[0] == {"part": 0, "bytes": 0}
        connection.close()
        return "train.py"

    try:
        yield service.address[1], ask
    finally:
        service.close()


DOORS = [reports, metrics, center]


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


@pytest.mark.parametrize("door", DOORS)
def test_many_who_say_nothing(monkeypatch, tmp_path, door):
    """The oldest are sent away as others come, and whoever belongs to the job gets its answer all the while."""
    monkeypatch.setattr(ports, "_MOST", MOST, raising=False)
    monkeypatch.setattr(ports, "GREETING_SECONDS", 1000.0, raising=False)
    monkeypatch.setattr(reporter, "_SECONDS_TO_GREET", 1000.0)
    with door(tmp_path) as (port, ask), contextlib.ExitStack() as stack:
        lines = []
        for _ in range(4):
            new = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2 * MOST)]
            lines += new
            for line in lines[:-MOST]:
                assert is_closed(line, 60)
            assert ask() == "train.py"
        assert not any(is_closed(line, 0) for line in lines[-MOST // 2 :])


@pytest.mark.parametrize("door", DOORS)
def test_one_who_says_nothing(monkeypatch, tmp_path, door):
    """It is sent away after a while; who has shown that it belongs to the job may be silent."""
    monkeypatch.setattr(ports, "GREETING_SECONDS", 0.2, raising=False)
    if hasattr(prometheus, "_Handler"):
        monkeypatch.setattr(prometheus._Handler, "timeout", 0.2)
    with door(tmp_path) as (port, ask), socket.create_connection(("127.0.0.1", port)) as line:
        assert is_closed(line, 60)
        assert ask() == "train.py"
        if door is center:
            known = wire.connect(("127.0.0.1", port), TOKEN)
            with socket.create_connection(("127.0.0.1", port)) as line:
                assert is_closed(line, 60)
            assert not known.poll(0.5)
            wire.send(known, {"ask": "part", "epoch": "1.1", "group": "b", "number": 0, "seen": 0, "count": 1})
            assert wire.receive(known)[0]["part"] == 1
            known.close()


EXHAUSTED = """
import os, resource, socket
from matex_tf.core import ports
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
listener = socket.create_server(("127.0.0.1", 0))
lines = [socket.create_connection(listener.getsockname()) for _ in range(3)]
door = ports.Door(listener)
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
assert door.accept() is None and lines[0].recv(1) == b""
os.close(taken.pop())
first = door.accept()
assert first.getpeername() == lines[1].getsockname()
assert door.accept() is None and lines[2].recv(1) == b""
print("ok", door.most)
"""


def test_no_descriptor_is_left():
    """Whoever knocks is sent away, and does not wake the thread for ever; with a descriptor it is let in again."""
    done = subprocess.run([sys.executable, "-c", EXHAUSTED], capture_output=True, text=True, timeout=120)
    assert done.stdout == "ok 4\n", done.stderr


def test_closed_while_somebody_waits():
    """The thread that waits for the next one ends."""
    door = ports.Door(socket.create_server(("127.0.0.1", 0)))
    ended = threading.Event()

    def wait():
        with pytest.raises(OSError):
            door.accept()
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    door.close()
    assert ended.wait(60)
    thread.join()
