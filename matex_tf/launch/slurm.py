"""The nodes of a Slurm job, from inside of it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from matex_tf.core import starting
from matex_tf.errors import MatexError

_SECONDS_TO_ANSWER = 60.0


def hosts(environ: Mapping[str, str] = os.environ) -> str:
    """The nodes of this job and the tasks that each has room for, as `--hosts` has them; empty outside of Slurm.

    Raises:
        MatexError: Slurm does not say it.
    """
    listed, tasks = environ.get("SLURM_JOB_NODELIST", ""), environ.get("SLURM_TASKS_PER_NODE", "")
    if not listed:
        return ""
    try:
        said = subprocess.run(
            ["scontrol", "show", "hostnames", listed],
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS_TO_ANSWER,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise MatexError(f"scontrol does not say which nodes {listed} are ({error}): name them by --hosts.") from None
    names = said.split()
    counts = counts_of(tasks) or [1] * len(names)
    if len(names) != len(counts):
        raise MatexError(f"SLURM_TASKS_PER_NODE is {tasks!r} for {len(names)} nodes ({listed}): name them by --hosts.")
    return ",".join(f"{name}:{count}" for name, count in zip(names, counts, strict=True))


def ranks_here() -> int:
    """Ranks of this job on this node; 0 where that is not known."""
    tasks = counts_of(os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = os.environ.get("SLURM_NODEID", "")
    of_slurm = tasks[int(node)] if node.isdigit() and int(node) < len(tasks) else 0
    return starting.local_size_in(os.environ) or of_slurm


def counts_of(text: str) -> list[int]:
    """The tasks of each node: 2, 2, 2, 1 for "2(x3),1"."""
    counts = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts
