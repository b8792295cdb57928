"""Ranks without the wait for imports: a server that has imported TensorFlow forks them.

Importing TensorFlow on 4 ranks takes 10 s on 2 cores, and a rank that is to be killed can be used only once. The
server imports it once. What mpirun starts is a small program that asks the server for a process with its environment,
directory and descriptors, ends as that process ends, and takes it along when it is killed. With `Client.environ` every
rank that runs `python -m matex_tf` becomes that program, whoever started it.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_LONGEST = 1 << 20
_START_SECONDS = 180.0
MARK = "MATEX_TEST_JOB"  # in the environment of every process of a job; see jobs.py

#: What a Python does first that has `Client.environ`. The variable is Open MPI's.
_FIRST = """
import os, sys
if "OMPI_COMM_WORLD_RANK" in os.environ and sys.orig_argv[1:3] == ["-m", "matex_tf"]:
    os.execv(sys.executable, {command} + sys.orig_argv[3:])
"""


def command(path: Path) -> list[str]:
    """What to start in place of `python -m matex_tf`."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(path)]


class Client:
    """A server as its users know it; someone else may have started it."""

    def __init__(self, path: Path):
        """Args: path: of its socket."""
        self.path = path
        self._log = path.with_name(f"{path.name}.log")
        #: For a job whose ranks shall come from here, those of `matex-tf run` and `horovodrun` too. Not for what
        #: looks at how ranks start, or at what becomes of them when mpirun is killed.
        self.environ = {"PYTHONPATH": str(path.with_name(f"{path.name}.first"))}

    def wait(self) -> None:
        """Until it has imported all."""
        limit = time.monotonic() + _START_SECONDS
        while not self.path.exists():
            if time.monotonic() > limit or not self._alive():
                raise RuntimeError(f"the server has ended, or does not get ready: {self._log.read_text()}")
            time.sleep(0.05)

    def _alive(self) -> bool:
        return True


class Server(Client):
    """A running server; a context manager."""

    def __init__(self, path: Path):
        """Start it, and do not wait for it. Args: path: of its socket."""
        super().__init__(path)
        first = path.with_name(f"{path.name}.first")
        first.mkdir()
        (first / "sitecustomize.py").write_text(_FIRST.format(command=command(path)))
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("MATEX_", "OMP_", "TF_"))}
        environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}  # as a rank has it that shares its cores
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([sys.executable, __file__, "--serve", str(path)], env=environ, stderr=log)

    def __enter__(self) -> Server:
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


def serve(path: str) -> int:
    """Fork a process for every connection; returns in those."""
    import h5py  # noqa: F401
    import keras  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import tensorflow  # noqa: F401

    import matex_tf.job.run  # noqa: F401

    gc.collect()
    gc.freeze()  # what was imported stays, and its pages are shared
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen()
    os.rename(f"{path}.new", path)
    events = selectors.DefaultSelector()
    events.register(listener, selectors.EVENT_READ)
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    events.register(woken, selectors.EVENT_READ)
    children: dict[int, socket.socket] = {}
    while True:
        for key, _ in events.select():
            source: Any = key.fileobj
            if source is listener:
                connection, _ = listener.accept()
                wanted, descriptors = receive(connection)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for other in (listener, woken, wake, connection, *children.values()):
                        other.close()
                    return become(wanted, descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                children[pid] = connection
                events.register(connection, selectors.EVENT_READ)
            elif source is woken:
                woken.recv(4096)
            else:  # the other end has been killed
                for pid, connection in children.items():
                    if connection is source:
                        os.kill(pid, signal.SIGKILL)
                events.unregister(source)
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                connection = children.pop(pid)
                with contextlib.suppress(KeyError):
                    events.unregister(connection)
                with contextlib.suppress(OSError):
                    connection.sendall(str(status).encode())
                connection.close()


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What is asked for, and the descriptors for it."""
    descriptors = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(_LONGEST, socket.CMSG_SPACE(12))
    for _, _, received in ancillary:
        descriptors.frombytes(received)
    while not data.endswith(b"\n"):
        data += connection.recv(_LONGEST)
    return json.loads(data), list(descriptors)


def become(wanted: dict[str, Any], descriptors: list[int]) -> int:
    """Be the process that was asked for; returns its exit code."""
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(wanted["environ"])
    Path("/proc/self/comm").write_text(os.environ.get(MARK, "rank")[:15])  # /proc shows the server's environment
    os.chdir(wanted["folder"])
    sys.path.insert(0, wanted["folder"])
    from matex_tf.job.run import main

    return main(wanted["arguments"])


def ask(path: str, arguments: list[str]) -> int:
    """Be a process of the server; returns its exit code."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    wanted = {"arguments": arguments, "environ": dict(os.environ), "folder": os.getcwd()}
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]).tobytes())]
    data = json.dumps(wanted).encode() + b"\n"
    sent = connection.sendmsg([data], rights)
    connection.sendall(data[sent:])
    status = int(connection.recv(100) or b"1")
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(serve(sys.argv[2]) if sys.argv[1] == "--serve" else ask(sys.argv[1], sys.argv[2:]))
