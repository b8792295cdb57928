"""The timeline, and what `matex-tf trace` makes of it."""

import json
import sys

import pytest

from matex_tf.cli import trace as timeline
from matex_tf.cli.main import main
from matex_tf.core.trace import BY_XLA
from tests.support.cases import traced


@pytest.mark.parametrize("schedule", ["chained", "funneled"])
def test_timeline(ranks, tmp_path, schedule, capsys):
    """One track a rank; each step has its parts, which lie in it and name their bucket; a table and a picture."""
    values = ranks(traced.train, (3,), schedule=schedule)[3]
    assert all(off for off, _ in values)
    path = tmp_path / "timeline.json"
    path.write_text(values[0][1])
    events = json.loads(values[0][1])["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in events} == {0, 1, 2}
    for rank in range(3):
        own = [span for span in spans if span["pid"] == rank]
        assert {"step", "op", "exchange", "pack", "wait", "reduce"} <= {span["name"] for span in own}
        buckets = {span["args"]["what"] for span in own if span["name"] == "exchange"}
        assert any("bucket 1 of exchange gradients and sums: " in bucket for bucket in buckets)
    steps = timeline.read(str(path))
    assert len(steps) == 3 * 10 and all(step.what.startswith("train step") for step in steps)
    for step in steps:
        assert all(length >= 0 for length in step.parts.values())
        assert all(step.begin <= begin <= step.begin + step.length for _, begin, _, _ in step.spans)
        assert step.parts["compute"] + step.parts["apply"] <= step.length * 1.001
        if schedule == "chained":
            assert sum(step.parts.values()) <= step.length * 1.05
    assert main(["trace", str(path)]) == 0
    assert "compute" in capsys.readouterr().out
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_adds_up(capsys):
    """Step and parts are means over the same steps, and one that waited for the machine is not among them."""
    lengths = [9e9, 9e9, 9e9] + [1000.0 * (4 + number % 3) for number in range(16)] + [2e6]
    steps = [
        timeline.Step(0, "train step", 0.0, one, parts={"compute": 0.75 * one, "apply": 0.25 * one}) for one in lengths
    ]
    timeline.show(steps)
    row = [float(word) for word in capsys.readouterr().out.splitlines()[-2].split()]
    assert row[0] == 0 and 4 < row[1] < 6 and sum(row[2:]) == pytest.approx(row[1], abs=0.02)


def test_steps_that_xla_divides(tmp_path, capsys):
    """What is not waiting is computing, and a line says what is in it."""
    step = {"ph": "X", "pid": 0, "ts": 100.0, "dur": 50.0, "name": "step", "args": {"what": f"train step, {BY_XLA}"}}
    wait = {"ph": "X", "pid": 0, "ts": 101.0, "dur": 8.0, "name": "wait"}
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps({"traceEvents": [step, wait]}))
    (found,) = timeline.read(str(path))
    assert (found.parts["compute"], found.parts["wait"]) == (42.0, 8.0)
    timeline.show([found])
    assert "computing has the exchange in it" in capsys.readouterr().out


def test_file_that_cannot_be_written(ranks):
    """Every rank says so, before the run; and at its end where the directory has gone meanwhile."""
    for text in ranks.refused(traced.nowhere, (3,))[3]:
        assert "/nowhere/timeline.json" in text and "--trace" in text
    for text in ranks.refused(traced.vanishes, (2,))[2]:
        assert "of 0/timeline.json" in text and "No such file" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("[]", "is not a timeline"),
        ("{", "is not a timeline"),
        ('{"traceEvents": []}', "has no step"),
    ],
)
def test_no_timeline(tmp_path, capsys, content, message):
    """A file that is something else: one clear message."""
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    assert main(["trace", str(path)]) == 1
    assert message in capsys.readouterr().err


def test_no_matplotlib(tmp_path, capsys, monkeypatch):
    """The table is there without it; a picture that was asked for is an error."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "timeline.json"
    step = {"ph": "X", "pid": 0, "ts": 100.0, "dur": 50.0, "name": "step", "args": {"what": "train step"}}
    path.write_text(json.dumps({"traceEvents": [step]}))
    assert main(["trace", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "compute" in shown and "no picture is drawn: a picture needs matplotlib" in shown
    assert main(["trace", str(path), "--png", str(tmp_path / "step.png")]) == 1
    assert "a picture needs matplotlib" in capsys.readouterr().err


def test_bad_flag(capsys):
    """It is named."""
    assert main(["trace", "file.json", "--gif", "x"]) == 2
    assert "--gif" in capsys.readouterr().err
