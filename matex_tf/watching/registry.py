"""The jobs of this user that can be watched: a file for each, in a directory that hosts may share.

Who can read such a file can watch the job, so nobody else can.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matex_tf.core import namespaces, ports
from matex_tf.errors import MatexError
from matex_tf.storage.private_directory import Folder

_SECONDS = 3.0
_MOST = 64 << 20  # bytes of an answer


@dataclasses.dataclass(frozen=True)
class Entry:
    """A job that can be watched.

    Attributes:
        name: what `matex-tf top` calls it: the number of the batch job, or that of the process of its first rank.
        script, ranks, started: what it runs, on how many ranks, and since when, in seconds since 1970.
        host, pid: of the rank that answers.
        addresses, port: where it does.
        token: what has to be said first.
        run: what it runs, for a group that joins: the words of the script and its arguments, the directory, the
            settings that are not the defaults, as texts by name, and the seed; `of` is what its launcher calls the
            job, see `core.sign.Sign.job`.
        center: what a feature says of how others can join it; None where they cannot (yet).
    """

    name: str
    script: str
    ranks: int
    started: float
    host: str
    pid: int
    addresses: tuple[str, ...]
    port: int
    token: str
    run: dict[str, Any] = dataclasses.field(default_factory=dict)
    center: dict[str, Any] | None = None

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended, as far as this host can tell."""
        if self.host != socket.gethostname():
            return False
        return namespaces.stat(self.pid)[:1] in ([], ["Z"])  # nobody has asked how it ended


def directory(base: str = "") -> Folder:
    """The directory of entries, open.

    Args:
        base: that of the setting `watch_dir`; empty for the one of the user's state.

    Raises:
        MatexError: others could change what is in it.
        OSError: it cannot be made.
    """
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Folder(Path(base or state), ["matex_tf", "jobs"], "--watch-dir")


def add(entry: Entry, base: str) -> None:
    """Write down a job, in place of what stood there of it.

    Raises:
        MatexError, OSError: see `directory`.
    """
    forget_gone(base)
    with directory(base) as folder:
        draft = f"{entry.name}.{entry.pid}.draft"
        folder.remove(draft)
        with folder.create(draft) as file:
            file.write(json.dumps(dataclasses.asdict(entry)).encode())
        folder.replace(f"{entry.name}.json", by=draft)


def remove(name: str, pid: int, base: str) -> None:
    """Forget a job, if this process is the one that answers for it. Nothing where the directory cannot be had.

    Args:
        name: of its `Entry`.
        pid: this process.
        base: see `directory`.
    """
    with contextlib.suppress(OSError, MatexError), directory(base) as folder:
        found = _read(folder, f"{name}.json")
        if found is not None and found.pid == pid:
            folder.remove(f"{name}.json")


def forget_gone(base: str) -> None:
    """Forget the jobs of this host whose process has ended: one that was killed could not."""
    with contextlib.suppress(OSError, MatexError):
        list(entries(base))


def entries(base: str = "") -> Iterator[Entry]:
    """The jobs, the newest first; those whose process has ended are forgotten.

    Raises:
        MatexError, OSError: see `directory`.
    """
    found = []
    with directory(base) as folder:
        for name in folder.names():
            entry = _read(folder, name) if name.endswith(".json") else None
            if entry is None:
                continue
            if entry.is_gone:
                folder.remove(name)
            else:
                found.append(entry)
    yield from sorted(found, key=lambda entry: -entry.started)


def _read(folder: Folder, name: str) -> Entry | None:
    try:
        with folder.open(name) as file:
            return of_text(file.read(1 << 20))
    except (OSError, ValueError, TypeError, KeyError, MatexError):
        return None


def of_text(text: str | bytes) -> Entry:
    """The job of a job file.

    Raises:
        ValueError, TypeError, KeyError: it is none.
    """
    values = json.loads(text)
    return Entry(**{**values, "addresses": tuple(values["addresses"])})


def ask(entry: Entry) -> dict[str, object]:
    """What a job says of itself, see `JobState.public`.

    Raises:
        OSError: it does not answer.
        ValueError: it answers something else.
    """
    with connect(entry) as line:
        line.sendall(json.dumps({"token": entry.token, "ask": "state"}).encode() + b"\n")
        answer = bytearray()
        while part := line.recv(1 << 16):
            answer += part
            if len(answer) > _MOST:
                raise ValueError("too long an answer")
    if not answer:
        raise OSError("closed the connection")
    found = json.loads(answer)
    if not isinstance(found, dict):
        raise ValueError("no job state")
    return found


def connect(entry: Entry) -> socket.socket:
    """A connection to a job.

    Raises:
        OSError: it cannot be reached.
    """
    return ports.connect(entry.addresses, entry.port, _SECONDS)
