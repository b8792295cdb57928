"""The GPUs of this machine: whether TensorFlow can use them, which rank gets which, where gradients go through."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from matex_tf.cli.checks.finding import Finding
from matex_tf.launch import resources

_SECONDS = 120


def listed() -> int:
    """How many GPUs nvidia-smi lists; 0 where there is none."""
    if not shutil.which("nvidia-smi"):
        return 0
    try:
        said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in said.splitlines())


def findings(usable: int, there: int, cores: int) -> list[Finding]:
    """What is to be said of GPUs.

    Args:
        usable: how many TensorFlow can use.
        there: how many nvidia-smi lists.
        cores: of this machine; a rank that feeds a GPU wants one at least.
    """
    if there > usable:
        advice = "TensorFlow cannot use the GPUs that nvidia-smi lists: pip install 'matex_tf[gpu]'."
        return [Finding("GPUs", f"{usable} of {there}", "check", advice)]
    if not usable:
        return [Finding("GPUs", "none")]
    found = [Finding("GPUs", str(usable))]
    if cores < usable:
        advice = f"{usable} ranks, one for each GPU, would share {cores} cores: ask the batch system for more of them."
        found.append(Finding("Cores for each GPU", f"{cores / usable:.1f}", "check", advice))
    untried = "no run with GPUs has been made: compare with one rank first (docs/gpus.md)."
    return [*found, Finding("Gradients of GPUs", "through the memory of the host", "check", untried)]


def shared_out(ranks_of_a_node: int, devices: Sequence[str]) -> list[str]:
    """Which rank of a node gets which GPU, a line each; none where there is nothing to share out.

    Args:
        ranks_of_a_node: how many.
        devices: as `resources.gpus` gives them.
    """
    if not devices:
        return []
    lines, shared = [], False
    for device in devices[:ranks_of_a_node]:
        mine = [rank for rank in range(ranks_of_a_node) if resources.gpu_of(rank, devices) == device]
        shared |= len(mine) > 1
        named = f"rank{'s' * (len(mine) > 1)} {', '.join(map(str, mine))} of each node"
        lines.append(f"GPU {device}: {named}")
    if ranks_of_a_node < len(devices):
        lines.append(f"GPU {', '.join(devices[ranks_of_a_node:])}: no rank; give -n {len(devices)}, or as many a node")
    if shared:
        lines.append(
            "ranks that share a GPU must not take all of its memory: set TF_FORCE_GPU_ALLOW_GROWTH=true, or start fewer"
        )
    return lines
