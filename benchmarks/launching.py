"""Jobs whose ranks measure something: how a benchmark starts them, and what the first rank tells it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import hosts as emulated
from matex_tf.launch import mpirun_command

ROOT = Path(__file__).resolve().parents[1]
_FOUND = "RESULT "
#: One thread computes on each rank, and one more may wait, as `matex-tf run` has it where a rank has a core.
THREADS = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
#: What mpirun (Open MPI 5) says, now and then, where others start or network interfaces come and go beside it.
_UNLUCKY = "listener thread failed to start"


def tell(found: Any) -> None:
    """On a rank: hand what was found to the benchmark that started it."""
    print(_FOUND + json.dumps(found), flush=True)


def module(name: str, layers: bool = False) -> list[str]:
    """How a rank runs a module, such as "benchmarks.wire". Args: layers: whether each rank has a private layer."""
    return ["-m", "benchmarks.in_layer", name] if layers else ["-m", name]


def run(command: Sequence[str], hosts: emulated.Hosts | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Run a command, on `head` where there are hosts; what it prints. Ends the benchmark where the command fails."""
    line = ["setpriv", "--pdeathsig", "TERM", *hosts.on(), *command] if hosts else list(command)
    extra = {**(hosts.environ if hosts else {}), **(environ or {})}
    environ = {**os.environ, **extra, "PYTHONPATH": str(ROOT)}
    for _ in range(3):
        done = subprocess.run(line, env=environ, capture_output=True, text=True, errors="replace")
        if _UNLUCKY not in done.stderr:
            break
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def start(
    count: int,
    words: Sequence[str],
    hosts: emulated.Hosts | None = None,
    each: int = 1,
    survive: bool = False,
    environ: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> str:
    """Run Python on ranks, to their end; what they print.

    Args:
        count: ranks.
        words: what follows the interpreter's name.
        hosts: emulated ones on which they run, `each` on one; None for this machine.
        survive: as for `mpirun_command.mpirun_line`.
        environ: variables of the ranks, beside their threads.
        python: the interpreter.
    """
    where = listed(hosts, each) if hosts else ""
    line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), count, where, names=list(THREADS), survive=survive)
    return run([*line, python, *words], hosts, {**THREADS, **(environ or {})})


def on_ranks(count: int, words: Sequence[str], *args: Any, **kwargs: Any) -> Any:
    """What the first rank told; arguments are those of `start`."""
    printed = start(count, words, *args, **kwargs)
    told = [text for text in printed.splitlines() if text.startswith(_FOUND)]
    if not told:
        sys.exit(f"{' '.join(words)} told nothing:\n{printed[-3000:]}")
    return json.loads(told[0].removeprefix(_FOUND))


def listed(hosts: emulated.Hosts, each: int = 1) -> str:
    """Hosts as `--hosts` wants them, with so many ranks on each."""
    return ",".join(f"{name}:{each}" for name in hosts.names)


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Other programs that want the cores."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
