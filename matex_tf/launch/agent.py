"""What mpirun starts its daemons on other hosts with, where ranks shall go on when a host is lost.

Open MPI 5 ends all ranks of a job once the connection between mpirun and a daemon closes, and no parameter of it says
otherwise (PRRTE 3.0, errmgr/dvm). A host that falls silent it does not notice, with `ulfm.options`. So the connection
goes through this process, which makes the one look like the other: where the daemon is gone, it does not tell mpirun,
unless ranks cannot go on yet, as in MPI_Init, or the daemon has ended by itself. That is said by the shell that it
runs in: srun ends with code 0 where a node was lost. What starts the daemon is ssh or srun.

Run by path, without the package: `python -I -S agent.py COUNT WORDS… HOST COMMAND…`, COUNT of the words being what
starts a command on a host.
"""

import contextlib
import importlib.util
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

_ENDED = re.compile(rb"matex_tf: the daemon has ended with (\d+)\n")
_ADDRESS = re.compile(r"tcp://([0-9.,]+):(\d+)")
_BY_SIGNAL = 128  # and more is what a shell says of a process that a signal has ended
_LONGEST = 4096
_PAUSE = 0.2  # seconds between looks at what was started, and at mpirun
#: What srun is told for one daemon on one node.
_SRUN = (
    *("--nodes=1", "--ntasks=1", "--overlap", "--mpi=none", "--kill-on-bad-exit=0", "--unbuffered", "--input=none"),
)


class Relay:
    """Hands on what the daemon and mpirun say to one another."""

    def __init__(self, addresses: Sequence[str], port: int):
        """Args: addresses, port: where mpirun listens."""
        self._target = (addresses[0], port)
        self._events = selectors.DefaultSelector()
        self.port = 0
        for address in addresses:
            listener = socket.create_server((address, self.port))
            self.port = listener.getsockname()[1]
            self._events.register(listener, selectors.EVENT_READ, None)
        self._daemon_of: dict[socket.socket, socket.socket | None] = {}  # of a connection to mpirun

    def serve(self, seconds: float) -> bool:
        """Hand on what there is; whether mpirun is still there.

        Args:
            seconds: to wait for something.
        """
        for key, _ in self._events.select(seconds):
            source: socket.socket = key.fileobj  # type: ignore[assignment]
            if key.data is None:
                self._accept(source)
                continue
            data = b""
            with contextlib.suppress(OSError):
                data = source.recv(1 << 16)
            to_daemon = source in self._daemon_of
            target = self._daemon_of[source] if to_daemon else key.data
            if data and target is not None:
                try:
                    target.sendall(data)
                except OSError:
                    if not to_daemon:
                        return False
            elif not data and to_daemon:
                return False
            elif not data:
                self._events.unregister(source)
                source.close()
                self._daemon_of[key.data] = None
        return True

    def _accept(self, listener: socket.socket) -> None:
        daemon, _ = listener.accept()
        mpirun = socket.create_connection(self._target)
        for line in (daemon, mpirun):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._daemon_of[mpirun] = daemon
        self._events.register(daemon, selectors.EVENT_READ, mpirun)
        self._events.register(mpirun, selectors.EVENT_READ, daemon)

    @property
    def whole(self) -> bool:
        """Whether no connection to the daemon has been lost."""
        return None not in self._daemon_of.values()

    @property
    def connected(self) -> bool:
        """Whether the daemon has ever been there."""
        return bool(self._daemon_of)


def _sign() -> Any:
    """The module `matex_tf.core.sign`, without the package."""
    spec = importlib.util.spec_from_file_location(
        "sign", os.path.join(os.path.dirname(os.path.dirname(__file__)), "core", "sign.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(words: Sequence[str]) -> int:
    """Start a daemon, and hand on what it says until mpirun is gone; returns the exit code."""
    sign = _sign()
    count = int(words[0])
    start, (host, *command) = list(words[1 : 1 + count]), words[1 + count :]
    line = " ".join(word for word in command if word != "--daemonize")  # so that it is known how the daemon ends
    found = _ADDRESS.search(line)
    relay = Relay(found[1].split(","), int(found[2])) if found else None
    if found and relay:
        line = f"{line[: found.start(2)]}{relay.port}{line[found.end(2) :]}"
    if os.path.basename(start[0]) == "srun":
        start += [*_SRUN, f"--nodelist={host}", "/bin/sh", "-c", line]
    else:
        start += [host, line]
    start[-1] += '; echo "matex_tf: the daemon has ended with $?"'
    # What mpirun has in its environment as a process of its own would confuse a daemon that srun hands it on to.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PMIX_", "PRTE_"))}
    asked, parent = os.environ.get(sign.VARIABLE, ""), os.getppid()
    daemon = subprocess.Popen(start, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environ)
    assert daemon.stdout is not None
    os.set_blocking(daemon.stdout.fileno(), False)
    said = b""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: daemon.terminate())
    while os.getppid() == parent:
        if relay is None:
            return daemon.wait()
        if not relay.serve(_PAUSE):
            break
        code = daemon.poll()
        said = (said + (daemon.stdout.read() or b""))[-_LONGEST:]
        ended = _ENDED.search(said)
        if code is not None and not relay.connected:
            return code if code > 0 else 1
        if code is not None and ended and int(ended[1]) < _BY_SIGNAL:
            return 0
        if (code is not None or not relay.whole) and not sign.is_up(asked):
            break
    daemon.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
