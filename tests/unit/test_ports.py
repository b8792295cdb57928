"""Ports of a job, at which somebody knocks who says nothing."""

import contextlib
import socket
import subprocess
import sys
import threading

import doors
import pytest

from matex_tf import settings
from matex_tf.core import ports
from matex_tf.core.world import World
from matex_tf.watching import registry, reporter
from matex_tf.watching.meter import Meter


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


@pytest.mark.parametrize("door", [reports])
def test_many_who_say_nothing(monkeypatch, tmp_path, door):
    """The oldest are sent away as others come, and whoever belongs to the job gets its answer all the while."""
    doors.check_many(monkeypatch, tmp_path, door)


@pytest.mark.parametrize("door", [reports])
def test_one_who_says_nothing(monkeypatch, tmp_path, door):
    """It is sent away after a while."""
    doors.check_silent(monkeypatch, tmp_path, door)


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
