"""`matex-tf bench allreduce`."""

import json

import pytest
from jobs import LAUNCHER, Job

from matex_tf.cli import main


def test_bench(tmp_path):
    """It times what it is told to, beside MPI, on as many ranks as asked for."""
    words = [LAUNCHER, "bench", "allreduce", "-n", "3", "--sizes", "4K,1M", "--repeat", "3", "--json", "figures.json"]
    job = Job(words, tmp_path)
    ended = job.end()
    assert ended.code == 0, ended.err
    assert "MPI_Allreduce" in ended.out and "1,000,000" in ended.out
    written = json.loads((tmp_path / "figures.json").read_text())
    assert written["ranks_of_nodes"] == [3]
    assert [figure["bytes"] for figure in written["figures"]] == [4000, 1_000_000]
    for figure in written["figures"]:
        assert all(value > 0 for value in figure.values())
    assert job.left() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["broadcast"], "allreduce"),
        (["allreduce", "--sizes", "1X"], "'1X'"),
        (["allreduce", "--repeat", "0"], "--repeat"),
        (["allreduce", "-n", "1"], "2 or more"),
        (["allreduce", "--fast"], "no --fast"),
        (["allreduce", "--json"], "--json needs a value"),
    ],
)
def test_bad_command_line(words, message, capsys):
    """One clear message, exit code 2."""
    assert main(["bench", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("matex-tf: error: ") and message in said
