"""What `matex-tf join` makes of a job file, and what it refuses."""

import dataclasses
import json
import os
import socket

import pytest
from there import needs

from matex_tf.cli.main import main
from matex_tf.strategies import STRATEGIES
from matex_tf.watching import registry

ENTRY = registry.Entry(
    "29465", "train.py", 2, 0.0, socket.gethostname(), os.getpid(), ("127.0.0.1",), 1, "00",
    {"words": ["train.py", "7"], "directory": "/", "settings": {"strategy": "elastic", "faults": "shrink"}, "seed": 9},
    {"addresses": [["127.0.0.1", 1]], "token": "00"},
)  # fmt: skip


#: Strategies whose ranks train independently, of those that there are.
ALONE = {"local"} & set(STRATEGIES)


@pytest.fixture
def known(tmp_path):
    def put(**changes):
        registry.add(dataclasses.replace(ENTRY, **changes), str(tmp_path))
        return ["--watch-dir", str(tmp_path)]

    return put


@needs("groups")
def test_what_it_starts(known, capsys, tmp_path, monkeypatch):
    """Ranks with the job's settings, seed, script and directory, as one group; what is given on the line wins."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    there = known(run={**ENTRY.run, "directory": str(tmp_path)})
    assert main(["join", "29465", "-n", "2", *there, "--threads", "1", "--dry-run"]) == 0
    line = capsys.readouterr().out
    file = tmp_path / "matex_tf" / "jobs" / "29465.json"
    for words in ("--strategy elastic", "--seed 9", "--groups 1", "--faults abort", f"--join {file}", "train.py 7"):
        assert words in line, line
    assert main(["join", "train.py", *there, "--dry-run", "train.py", "8"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("train.py 8")
    copied = tmp_path / "copied.json"
    copied.write_text(file.read_text())
    copied.chmod(0o600)
    assert main(["join", str(copied), "--dry-run"]) == 0
    assert f"--join {copied}" in capsys.readouterr().out


def test_refused(known, capsys, tmp_path):
    """In words, before anything is started."""
    for settings, why in (
        ({}, "its --faults is abort"),
        *[
            ({"strategy": name, "faults": "shrink"}, f"its ranks train independently (--strategy {name})")
            for name in ALONE
        ],
        ({"faults": "shrink", "batch": "per-rank"}, "it has --batch per-rank"),
    ):
        there = known(center=None, run={**ENTRY.run, "settings": settings})
        assert main(["join", "29465", *there]) == 2
        said = capsys.readouterr().err
        assert f"no rank can join job 29465: {why}" in said and "it has no center that a group could join" in said
    there = known(center=None, run={**ENTRY.run, "settings": {"faults": "shrink"}})
    assert main(["join", "29465", *there, "--threads", "1"]) == 2
    assert "run what it runs, with its settings: give its number and -n" in capsys.readouterr().err
    assert main(["join", "29465", *there]) == 1
    assert "job 29465 does not answer, or has ended" in capsys.readouterr().err
    assert main(["join", "1", *there]) == 2
    assert "there is no job 1: 29465 (train.py)" in capsys.readouterr().err
    readable = tmp_path / "job.json"
    readable.write_text(json.dumps(dataclasses.asdict(ENTRY)))
    readable.chmod(0o644)
    assert main(["join", str(readable)]) == 2
    assert f"chmod 600 {readable}" in capsys.readouterr().err
    readable.chmod(0o600)
    readable.write_text("{}")
    assert main(["join", str(readable)]) == 2
    assert "is not a job file that can be read" in capsys.readouterr().err
    if "elastic" not in STRATEGIES:
        return
    known(run={**ENTRY.run, "directory": str(tmp_path / "gone")})
    assert main(["join", "29465", *there]) == 2
    assert "is not there (No such file or directory): give the script" in capsys.readouterr().err
