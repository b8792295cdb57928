"""What the launcher and the ranks of every job do for ranks that may come: most of them cannot, and import nothing."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from matex_tf.job import launching
from matex_tf.launch import resources
from matex_tf.settings import Settings

if TYPE_CHECKING:  # which needs numpy, and the launcher does not
    from matex_tf.core.world import World


def let_come(world: World, settings: Settings, run: dict[str, Any]) -> None:
    """Let ranks come to this job, where they can; see `Feature.watched`."""
    if not world.can_grow:
        return
    from matex_tf.features.join.growth import Growth, why_not

    if not why_not(settings):
        cores = dict(world.allgather((world.host, resources.cores().physical), "tell how many cores there are"))
        world.growth = Growth(world, run, cores)


def follow(given: argparse.Namespace, settings: Settings, job: str) -> contextlib.AbstractContextManager[object]:
    """Have ranks come and leave as the file of `--hosts-file` changes, where --ranks lets them.

    Args: see `Feature.beside`.
    """
    path = os.path.abspath(given.hosts_file) if vars(given).get("hosts_file") else ""
    if not path or not vars(given).get("between"):
        return contextlib.nullcontext()
    from matex_tf.features.join import growth  # which needs numpy
    from matex_tf.features.join.hosts_file import HostsFile

    if why := growth.why_not(settings):
        _say(f"{path} is not looked at while the job runs: {why}")
        return contextlib.nullcontext()
    hosts_now = functools.partial(launching.read_hostfile, "--hosts-file", path)
    return HostsFile(path, given.hosts, hosts_now, job, settings.watch_dir, _say)


def _say(line: str) -> None:
    print(f"matex_tf: {line}", file=sys.stderr, flush=True)
