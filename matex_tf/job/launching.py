"""What every command that starts ranks takes: how many, on which hosts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from matex_tf.job.command_line import Convert, Parser
from matex_tf.launch import resources


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


def hosts(flag: str, given: str) -> str:
    """A list of hosts as it was given, once it is seen to be one."""
    resources.slots(given)
    return given


@contextmanager
def folder(hosts: str, purpose: str) -> Iterator[str]:
    """A directory for what rank 0 writes; where it may be on another host, here, which hosts must share."""
    elsewhere = bool(hosts) or resources.in_batch_system()
    with tempfile.TemporaryDirectory(prefix=f".matex-{purpose}-", dir=os.getcwd() if elsewhere else None) as path:
        yield path
