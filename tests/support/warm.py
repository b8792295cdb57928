"""Ranks without the wait for imports: a server that has imported TensorFlow forks them, as `--warm-imports` has it.

Importing TensorFlow on 4 ranks takes 10 s on 2 cores, and a rank that is to be killed can be used only once. This
server is one for many jobs, and stays between them. What mpirun starts is a small program that asks it for a process
and stands in for that. With `Client.environ` every rank that runs `python -m matex_tf` becomes that program, whoever
started it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # what asks has no site-packages

try:
    from matex_tf.features.warm import messages, process, server, stand_in
except ModuleNotFoundError:  # the feature is not there (scripts/without): ranks import for themselves
    server = None

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
    asks = ["-I", "-S", str(Path(__file__).resolve()), str(path)]
    return [sys.executable, *(asks if server else ["-m", "matex_tf"])]


class Client:
    """A server as its users know it; someone else may have started it."""

    def __init__(self, path: Path):
        """Args: path: of its socket."""
        self.path = path
        self._log = path.with_name(f"{path.name}.log")
        #: For a job whose ranks shall come from here, those of `matex-tf run` and `horovodrun` too. Not for what
        #: looks at how ranks start, or at what becomes of them when mpirun is killed.
        self.environ = {"PYTHONPATH": str(path.with_name(f"{path.name}.first"))} if server else {}

    def wait(self) -> None:
        """Until it has imported all."""
        limit = time.monotonic() + _START_SECONDS
        while server and not self.path.exists():
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
    """Fork a process for everyone who asks; returns in those."""
    if not server:
        return 0
    import h5py  # noqa: F401
    import keras  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import tensorflow  # noqa: F401

    import matex_tf.job.run

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen()
    os.rename(f"{path}.new", path)
    forked = server.Server(listener, lambda wanted: "", stays=True).serve()
    forked.begin()
    Path("/proc/self/comm").write_text(os.environ.get(MARK, "rank")[:15])  # /proc shows the server's environment
    sys.path.insert(0, os.getcwd())
    line = forked.wanted["line"]
    return matex_tf.job.run.main(line[line.index(path) + 1 :])


def ask(path: str) -> None:
    """Stand in for a process of the server; never returns."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    said, descriptors = process.describe()
    ready, begin = os.pipe()
    messages.send(connection, said, [*descriptors, ready])
    os.close(ready)
    stand_in.wait_for_start(connection)
    stand_in.stand_in(connection, begin)


if __name__ == "__main__":
    sys.exit(serve(sys.argv[2]) if sys.argv[1] == "--serve" else ask(sys.argv[1]))
