"""Random steps of Keras in float64 through the partitioner, in a process of their own: floatx is a setting of Keras."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = 4


@pytest.mark.variants(1)
@pytest.mark.parametrize("part", range(50))
def test_random_steps(part):
    """Logs, variables and slots of three ranks are those of one."""
    command = [sys.executable, "-m", "tests.support.partition_fuzz", "--steps", str(STEPS), "--seed", str(part * STEPS)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    assert f"{STEPS} steps, 0 failed" in ended.stdout
