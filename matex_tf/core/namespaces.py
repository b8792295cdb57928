"""What two ranks on hosts of one name mean alike: containers may have the name, and no process or file, in common."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

_BOOT = "/proc/sys/kernel/random/boot_id"


def machine() -> str:
    """A mark of the running kernel, another on each machine and after each start; empty where it cannot be read."""
    with contextlib.suppress(OSError), open(_BOOT, encoding="ascii") as file:
        return file.read().strip()
    return ""


def process() -> tuple[str, int, int]:
    """A mark of this process: machine, PID namespace, and its number there. Where two have the first two in common,
    each means the other by that number."""
    with contextlib.suppress(OSError):
        return machine(), os.stat("/proc/self/ns/pid").st_ino, os.getpid()
    return machine(), -os.getpid(), os.getpid()  # nobody knows


def file(descriptor: int) -> tuple[str, int, int]:
    """A mark of an open file: machine, device, and number on that."""
    found = os.fstat(descriptor)
    return machine(), found.st_dev, found.st_ino


def stat(process: int | str) -> list[str]:
    """What the kernel says of a process in /proc: its state, its parent, …, the 20th when it began; nothing where there
    is none."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
    return []


def here_alone(call: Callable[..., Any]) -> Callable[..., None]:
    """A function that calls another one in this process, and does nothing in those that are forked from it.

    Args:
        call: such as what is registered with `atexit`, of which a forked process has a copy.
    """
    process = os.getpid()

    def called(*args: Any, **kwargs: Any) -> None:
        if os.getpid() == process:
            call(*args, **kwargs)

    return called
