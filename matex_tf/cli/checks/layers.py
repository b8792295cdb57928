"""Whether `--files private` can have its layers on this machine: tried in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from matex_tf.cli.checks.finding import Finding
from matex_tf.layer import kernel

_SECONDS = 60
_TRY = """
import os, sys
from matex_tf.layer import kernel, places, private_layer
try:
    kernel.leave_mounts()
    private_layer.PrivateLayer(places.to_cover([os.getcwd()]), [os.getcwd()]).remove()
except Exception as error:
    sys.exit(str(error))
"""


def findings() -> list[Finding]:
    """The line of the table."""
    try:
        tried = subprocess.run([sys.executable, "-c", _TRY], capture_output=True, text=True, timeout=_SECONDS)
        said = "" if not tried.returncode else (tried.stderr.strip().splitlines() or ["it was killed"])[-1]
    except (OSError, subprocess.SubprocessError) as error:
        said = str(error)
    if not said:
        return [Finding("Private layers", "work")]
    line = kernel.forbidden_by()
    return [Finding("Private layers", f"none here: {f'{line} forbids them to users' if line else said}")]
