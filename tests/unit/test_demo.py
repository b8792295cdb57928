"""What `scripts/demo` says: why ranks that share cores are slower, one rank on one core, and the work of a rank."""

import json

import pytest

from scripts import demo_table

RUN = {"training loss": 0.07, "training accuracy": 0.98, "loss": 0.14, "accuracy": 0.97}


@pytest.fixture
def folder(tmp_path):
    for name, seconds in (("core", 3.0), ("1", 2.0), ("4", 5.0)):
        (tmp_path / f"{name}.json").write_text(json.dumps({**RUN, "seconds": seconds}))
    for name, work in (("work-1", 2.0), ("work-4", 0.56)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"work": work}))
    return tmp_path


@pytest.mark.parametrize(
    "cores, words", [(2, "2 cores, so 4 ranks take longer here than one"), (8, "each of 4 ranks has one")]
)
def test_it_says_why_before_the_table(folder, capsys, monkeypatch, cores, words):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert demo_table.main(folder) == 0
    said = capsys.readouterr().out
    assert said.index(words) < said.index("examples/digits.py, the same script")
    assert "1 rank on 1 core" in said and "0.28 of 1 rank" in said
    seconds = next(line for line in said.splitlines() if "seconds" in line and "3.0" in line)
    assert "2.0" in seconds and "5.0" in seconds


def test_answers_that_differ(folder, capsys):
    (folder / "4.json").write_text(json.dumps({**RUN, "loss": 0.15, "seconds": 1.0}))
    assert demo_table.main(folder) == 1
    assert "the answers are not the same: the losses are 7.1e-02 apart" in capsys.readouterr().err
