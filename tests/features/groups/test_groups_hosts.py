"""Groups on hosts that are emulated on this machine by benchmarks/hosts.py: one for each host (`--groups host`), and
one on a host of its own that joins a running job."""

import json

import pytest
from jobs import LAUNCHER, Job
from on_hosts import left
from there import needs

from benchmarks.hosts import Hosts, unavailable
from tests.features.groups.test_groups_faults import EPOCHS, SCRIPT
from tests.features.groups.test_joining import BATCHES, Pair, trained

pytestmark = [
    pytest.mark.timeout(900),
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


@pytest.mark.variants(0)
@needs("join")
def test_joins_from_another_host(tmp_path):
    """With a copy of the job file, as the job listens on a network that both have (--center-network). It takes parts of
    batches, and ends with the job. With addresses that the other host cannot reach it is refused in words."""
    with Hosts(2) as hosts:
        network = ["--center-network", "10.77.0.0/24"]
        pair = Pair(tmp_path, {}, "elastic", hosts.on("h1", tmp_path), network)
        try:
            copy, far = pair.copied("job.json"), hosts.on("h2", tmp_path)
            where = json.loads(copy.read_text())["center"]["addresses"]
            assert {address for address, _ in where} == {hosts.address("h1")}
            elsewhere = pair.copied("elsewhere.json", addresses=[["127.0.0.1", port] for _, port in where])
            refused = pair.join(entry=elsewhere.name, at=far).end(200)
            assert refused.code and "no server of the job can be reached" in refused.err, refused
            assert "--center-network" in refused.err
            guest = pair.join(entry=f"./{copy.name}", at=far)
            begun = pair.await_line("guest.0", trained)
            epoch = pair.await_line("guest.0", lambda line: line["epoch"] > begun and trained(line))
            for who in ("job.0", "job.1"):
                pair.await_line(who, lambda line: line["epoch"] > epoch)
            steps = [pair.lines(who)[epoch]["steps"] for who in ("job.0", "job.1", "guest.0")]
            assert sum(steps) == 3 * BATCHES
            (tmp_path / "enough").touch()
            ended = pair.job.end(200), guest.end(200)
            assert [one.code for one in ended] == [0, 0], ended
            assert "a group of 1 rank on h2 has joined" in ended[0].err
            assert "and so does this group" in ended[1].err
        finally:
            pair.stop()
