"""The timeline: what ranks write, and what is read of it."""

import json

import pytest

from matex_tf.planning import timeline
from tests.support.cases import traced


@pytest.mark.parametrize("schedule", ["chained", "funneled"])
def test_timeline(ranks, tmp_path, schedule):
    """One track a rank; each step has its parts, which lie in it and name their bucket."""
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


def test_file_that_cannot_be_written(ranks):
    """Every rank says so, before the run; and at its end where the directory has gone meanwhile."""
    for text in ranks.refused(traced.nowhere, (3,))[3]:
        assert "/nowhere/timeline.json" in text and "--trace" in text
    for text in ranks.refused(traced.vanishes, (2,))[2]:
        assert "of 0/timeline.json" in text and "No such file" in text
