"""What every command that starts ranks takes: how many, on which hosts."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matex_tf.errors import SettingError
from matex_tf.job.command_line import Convert, Parser
from matex_tf.launch import resources


class _HostsOfFile(argparse.Action):
    """`--hosts-file`: the hosts that a file has now, as if `--hosts` had them, and its path."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        namespace.hosts, namespace.hosts_file = read_hostfile(option_string or "", values), values


def add_ranks(parser: Parser, title: str, count: Convert, *more_names: str) -> None:
    """Add `-n` and `--hosts`.

    Args:
        parser: of the command.
        title: of the group that they are put in.
        count: reads the value of `-n`.
        more_names: other names of `-n`.
    """
    parser.add(
        title,
        "-n",
        *more_names,
        dest="ranks",
        metavar="N",
        default=0,
        convert=count,
        help="Ranks (default: the slots of --hosts, the tasks of the batch job, or one for each core)",
    )
    parser.add(
        title,
        "--hosts",
        metavar="H1:4,H2:4",
        default="",
        convert=hosts,
        help="Hosts, and the ranks that each has room for",
    )
    parser.add(
        title,
        "--hosts-file",
        action=_HostsOfFile,
        metavar="FILE",
        default="",
        help="A file that has them, in lines such as H1:4 or H1 slots=4, as those of mpirun; with --ranks, ranks come "
        "and leave as it changes",
    )


def hosts(flag: str, given: str) -> str:
    """A list of hosts as it was given, once it is seen to be one; see `Convert`.

    Raises:
        SettingError: it is none.
    """
    resources.slots(given)
    return given


def read_hostfile(flag: str, path: str) -> str:
    """Hosts and slots as `--hosts` has them, from lines such as `H1 slots=4` or `H1:4`.

    Args:
        flag: the option, for errors.
        path: of the file; what follows a # in a line is left out.

    Raises:
        SettingError: it cannot be read, has no host, or one that cannot be.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{flag} {path} cannot be read: {getattr(error, 'strerror', error)}.") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        counts = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
        found.append(f"{words[0]}:{counts[0]}" if counts else words[0])
        try:
            resources.slots(found[-1])
        except SettingError:
            raise SettingError(
                f"{flag} {path}, line {number}: {words[0]!r} cannot be the name of a host with a number of slots."
            ) from None
    if not found:
        raise SettingError(f"{flag} {path} names no host.")
    return ",".join(found)


@contextmanager
def folder(hosts: str, purpose: str) -> Iterator[str]:
    """A directory for what rank 0 writes, which is removed at the end.

    Args:
        hosts: as `--hosts` has them. With these, and in a batch job, rank 0 may be on another host: the directory is
            then made in the working directory, which hosts must share; else where temporary files are.
        purpose: a word for its name.
    """
    elsewhere = bool(hosts) or resources.in_batch_system()
    with tempfile.TemporaryDirectory(prefix=f".matex-{purpose}-", dir=os.getcwd() if elsewhere else None) as path:
        yield path
