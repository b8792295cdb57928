"""Ranks that come to a job on several hosts (`matex-tf join`), emulated by benchmarks/hosts.py."""

import json
import os
import signal
import sys
import time

import chaos_joins
import numpy as np
import pytest
from jobs import LAUNCHER, Job

from benchmarks.hosts import Hosts, unavailable

needs_hosts = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can run")
pytestmark = [needs_hosts, pytest.mark.timeout(400)]


class Growing:
    """A job of two ranks on two hosts, of several."""

    def __init__(self, hosts, folder, kind, *flags, ranks=("-n", "2", "--hosts", "h1:1,h2:1", "--faults", "shrink")):
        (folder / "train.py").write_text(chaos_joins.SCRIPT)
        (folder / "state").mkdir(mode=0o700)
        self.hosts, self.folder, self.kind = hosts, folder, kind
        words = ["run", *ranks, "--seed", "1", "--watch-dir", str(folder / "state"), *flags, "train.py", kind, "1000"]
        environ = {"TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **hosts.environ}
        self.job = Job([*hosts.on(folder=folder), LAUNCHER, *words], folder, **environ)
        limit = time.monotonic() + 200
        while not (folder / "begun").exists():
            assert time.monotonic() < limit and self.job.process.poll() is None, self.job.end(1)
            time.sleep(0.05)

    def join(self, *flags):
        """What `matex-tf join` has come to."""
        file = next((self.folder / "state" / "matex_tf" / "jobs").glob("*.json"))
        return Job([*self.hosts.on(folder=self.folder), LAUNCHER, "join", str(file), *flags], self.folder).end(300)

    def await_ranks(self, count, gone=""):
        """Wait until so many ranks train, and none is on a host any more that is named."""
        limit = time.monotonic() + 120
        while (self.folder / "begun").read_text() != str(count) or (gone and self.ranks(gone)):
            assert time.monotonic() < limit and self.job.process.poll() is None, self.job.end(1)
            time.sleep(0.1)

    def ranks(self, host, which="-m matex_tf"):
        """The processes of ranks on a host, those that have come too."""
        return [pid for pid, command in self.hosts.processes(host).items() if which in command]

    def guests(self, host):
        """The processes of ranks that have come, on a host."""
        return self.ranks(host, "-m matex_tf.features.join.newcomer")

    def end(self, *cut):
        """Let it end: it has the answer of one rank. What it has said, and the ranks of each epoch.

        Args:
            cut: hosts whose cable was pulled.
        """
        (self.folder / "over").touch()
        self.job.process.wait(200)
        for host in cut:  # its prted cannot hear of the end, and holds the output open
            self.hosts.kill(host)
        ended = self.job.end(60)
        assert ended.code == 0, ended
        grown = json.loads((self.folder / "result").read_text())
        words = ["-m", "matex_tf", "--seed", "1", "train.py", self.kind, str(len(grown["epochs"]))]
        assert Job([sys.executable, *words], self.folder).end(200).code == 0
        alone = json.loads((self.folder / "result").read_text())
        for what in ("epochs", "evaluate"):
            np.testing.assert_allclose(grown[what], alone[what], rtol=1e-8, atol=1e-10)
        return ended.err, grown["sizes"]


@pytest.fixture
def begin(tmp_path):
    """Starts a job, with so many hosts there."""
    jobs = []

    def start(count, *words, **more):
        jobs.append((hosts := Hosts(count)).__enter__())
        jobs.append(growing := Growing(hosts, tmp_path, *words, **more))
        return growing

    yield start
    for one in reversed(jobs):
        one.__exit__() if isinstance(one, Hosts) else one.job.stop()


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["arrays", "later fit", "tf.data", "DataSet 2"])
def test_comes_and_dies(begin, kind):
    """One comes to each host, and one of them dies: nothing is used twice or left out."""
    growing = begin(2, kind)
    came = growing.join("-n", "2")
    assert came.code == 0, (came, growing.job.end(1))
    said = " ".join(sorted(line for line in came.err.splitlines() if "has joined, and" in line))  # each writes its own
    assert all(words in said for words in ("h1 has joined", "h2 has joined", "3 ranks", "4 ranks")), came
    [guest] = growing.guests("h2")
    os.kill(guest, signal.SIGKILL)
    said, sizes = growing.end()
    assert "on h2 died in" in said and sizes[-1] == 3, (said, sizes)


@pytest.mark.variants(0)
def test_falls_silent(begin):
    """A host is out of reach, with one that has come: MPI listens for heartbeats of those alone that began."""
    growing = begin(2, "arrays", "--stall-abort-seconds", "12")
    assert growing.join("-n", "2").code == 0
    growing.hosts.unplug("h2")
    growing.await_ranks(2, "h2")  # they end, as the others go on
    said, sizes = growing.end("h2")
    assert sizes[-1] == 2 and "2 ranks continue" in said, (said, sizes)


@pytest.mark.variants(0)
def test_where_it_comes(begin, tmp_path):
    """To hosts that are named; not to another one. What goes wrong with it before costs the job nothing."""
    growing = begin(3, "later fit")
    refused = growing.join("-n", "1", "--hosts", "h3")
    assert refused.code == 1 and "ranks come to the hosts of the job (h1, h2), not to others" in refused.err, refused
    (tmp_path / "dies").touch()
    refused = growing.join("-n", "1", "--hosts", "h2")
    assert refused.code == 1 and "a joining rank has died before it took part" in refused.err, refused
    (tmp_path / "dies").unlink()
    came = growing.join("-n", "3", "--hosts", "h2:2")
    assert came.code == 1 and "--hosts has no more room" in came.err, came
    assert came.err.count("a rank on h2 has joined") == 2 and "4 ranks continue" in came.err, came
    for guest in growing.guests("h2"):
        os.kill(guest, signal.SIGTERM)
    said, sizes = growing.end()
    left = "left, as it was told to (SIGTERM)"
    assert left in said and "died in" not in said and sizes[-1] == 2, (said[-1500:], sizes)


@pytest.mark.variants(1)
@pytest.mark.parametrize("host", ["h1", "h2"])
def test_hosts_file(begin, tmp_path, host):
    """Ranks come to the hosts of a file that has more room, and leave those that are gone, with the first rank too."""
    file, other = tmp_path / "hosts", {"h1": "h2", "h2": "h1"}[host]
    file.write_text("h1 slots=1\nh2 slots=1\n")
    growing = begin(3, "arrays", ranks=("--ranks", "2:3", "--hosts-file", str(file)))
    file.write_text(f"{host}:1\n{other}:8\nh3:1\n")  # as many as --ranks allows
    growing.await_ranks(3)
    time.sleep(2)  # its first steps are over
    file.unlink()
    time.sleep(3)
    (tmp_path / "new").write_text(f"{other}:2\n")
    (tmp_path / "new").rename(file)
    growing.await_ranks(2, host)
    file.write_text(f"{other}:1\n")
    time.sleep(8)
    said, sizes = growing.end()
    for line in (
        *("hosts names h3, on which the job has no rank", "hosts has changed: ranks to join: 1, to leave: 0"),
        *(f"a rank on {other} has joined, and 3 ranks", "cannot be read: No such file or directory. The job continues"),
        *("hosts has changed: ranks to join: 0, to leave: 1", "left, as it was told to (SIGTERM)"),
        "ranks that hosts has no room for stay (1): the job has --min-ranks 2",
    ):
        assert said.count(line) == 1, (line, said)
    assert 3 in sizes and sizes[-1] == 2, sizes
