"""Groups of the ranks of a host (`--groups host`) on three hosts, emulated on this machine by benchmarks/hosts.py."""

import json

import pytest
from jobs import LAUNCHER, Job
from on_hosts import left

from benchmarks.hosts import Hosts, unavailable
from tests.faults.test_groups_faults import EPOCHS, SCRIPT

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can run"),
]


@pytest.mark.variants(0)
def test_a_group_for_each_host(tmp_path):
    """The ranks of a host make the same steps, and a rank that takes three times as long slows its own host alone:
    the others make more steps than they would side by side with it, and together all rows are used once."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with Hosts(3) as hosts:
        line = [*hosts.on(folder=tmp_path), LAUNCHER, "run", "-n", "6", "--hosts", "h1:2,h2:2,h3:2", "--seed", "3"]
        line += ["-x", "DEATH", "-x", "SLOW"]
        line += ["--strategy", "elastic", "--groups", "host", "--elastic-every", "4", "script.py"]
        job = Job(line, tmp_path, **hosts.environ, DEATH="null", SLOW="3")
        ended = job.end(300)
        assert ended.code == 0, ended.err
        assert left(hosts, job, 30) == []
    found = [json.loads((tmp_path / f"result.{rank}").read_text()) for rank in range(6)]
    steps = [one["steps"] for one in found]
    assert steps[0::2] == steps[1::2]
    assert sum(steps[0::2]) == 3 * EPOCHS * 20
    assert steps[2] < min(steps[0], steps[4]), steps
    assert len({tuple(one["weights"]) for one in found}) == 1
    assert found[0]["number"] == pytest.approx([299.5] * EPOCHS)
