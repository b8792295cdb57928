"""Preparing a rank: what the launcher tests cannot see from outside."""

from types import SimpleNamespace

import pytest

from matex_tf.job import run


@pytest.mark.parametrize(
    ("listed", "local_rank", "device"),
    [("0,1,2,3", 2, "2"), ("4,6", 3, "6"), ("GPU-a,GPU-b", 0, "GPU-a"), ("5", 1, "5"), ("-1", 1, "-1"), ("", 0, "")],
)
def test_a_gpu_for_each_rank(monkeypatch, listed, local_rank, device):
    """GPUs that are listed are taken in turn; one, or none, stays as it is."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    run.set_gpus(SimpleNamespace(local_rank=local_rank))
    assert run.os.environ["CUDA_VISIBLE_DEVICES"] == device
