"""GPUs: which rank gets which, what the doctor says of them, what `--dry-run` shows. None is needed, none was tried."""

import subprocess

import pytest
from jobs import LAUNCHER

from matex_tf.cli.checks import gpus
from matex_tf.launch import resources


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (4, [f"GPU {number}: rank {number} of each node" for number in range(4)]),
        (2, ["GPU 0: rank 0 of each node", "GPU 1: rank 1 of each node", "GPU 2, 3: no rank; give -n 4"]),
        (6, ["GPU 0: ranks 0, 4 of each node", "GPU 1: ranks 1, 5", "GPU 2: rank 2", "GPU 3: rank 3", "GROWTH=true"]),
    ],
)
def test_dry_run_for_a_node_with_four(tmp_path, monkeypatch, ranks, said):
    """A line for each GPU; one for GPUs that nobody has, and one for those that several share."""
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    line = [LAUNCHER, "run", "-n", f"{2 * ranks}", "--hosts", f"a:{ranks},b:{ranks}", "--dry-run", "train.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and done.stdout.startswith("/") and len(lines) == len(said), done
    assert all(words in line for words, line in zip(said, lines, strict=True)), lines


def test_no_gpus(monkeypatch):
    """Nothing is said where there is nothing to share out, also where all are hidden."""
    assert gpus.shared_out(4, resources.gpus({"CUDA_VISIBLE_DEVICES": "-1"})) == []
    assert [finding.found for finding in gpus.findings(0, 0, 2)] == ["none"]


def test_what_the_doctor_says():
    """GPUs that TensorFlow cannot use; more of them than cores; and that no run has been made."""
    (lost,) = gpus.findings(1, 4, 64)
    assert lost.state == "check" and lost.found == "1 of 4" and "matex_tf[gpu]" in lost.advice
    found = {finding.what: finding for finding in gpus.findings(4, 4, 2)}
    assert "share 2 cores" in found["Cores for each GPU"].advice and found["GPUs"].state == "ok"
    assert "no run with GPUs has been made" in found["Gradients of GPUs"].advice
    assert "Cores for each GPU" not in {finding.what for finding in gpus.findings(4, 4, 32)}
