"""`matex-tf top` and `--metrics`: what they show of a job that reports."""

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import doors
import pytest
from jobs import LAUNCHER, MEET, Job

from benchmarks.hosts import Hosts, unavailable
from matex_tf import settings
from matex_tf.cli.main import main
from matex_tf.core.world import World
from matex_tf.errors import SettingError
from matex_tf.features.watch import prometheus, view
from matex_tf.features.watch.options import WatchOptions
from matex_tf.job import suggestions
from matex_tf.watching import registry
from matex_tf.watching.meter import Meter
from matex_tf.watching.reporter import Reporter
from tests.unit.test_watching import counts
from tests.unit.test_watching import job as reported


@pytest.fixture
def job(tmp_path):
    """One of one rank that reports, and is served; its directory, and the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    chosen = settings.Settings().changed(watch_dir=str(tmp_path), metrics=port)
    meter = Meter()
    meter.count(32)
    show = prometheus.begin(World(), chosen)
    found = Reporter(World(), meter, "train.py", chosen, False, [show], {"words": ["train.py"]})
    _until(lambda: next(iter(registry.entries(str(tmp_path))), None))
    yield found, str(tmp_path), port
    found.stop()


def _until(there):
    end = time.monotonic() + 10
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_top(job, capsys):
    """The newest job, or the one that is named; a list of them."""
    found, watched, _ = job
    name = next(iter(registry.entries(watched))).name
    _until(lambda: main(["top", "--once", "--watch-dir", watched]) == 0)
    assert "train.py, job" in capsys.readouterr().out
    assert main(["top", "--list", "--watch-dir", watched]) == 0
    assert name in capsys.readouterr().out
    assert main(["top", "nothing", "--watch-dir", watched]) == 2
    assert name in capsys.readouterr().err
    found.stop()
    assert main(["top", "--watch-dir", watched]) == 1
    assert "no job of yours is running" in capsys.readouterr().err


def test_table():
    """How many ranks are alive, and what has happened."""
    found = reported(counts(0, 1), counts(1, 1))
    found.left(2, ended=False, host="node2")
    public = found.public()
    from rich.console import Console

    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(view.render("12", public))
    shown = console.export_text()
    assert "train.py, job 12: 2 of 3 ranks" in shown and "rank 2 on node2 died" in shown


def test_prometheus(job):
    """The same figures, in Prometheus' format; the dashboard asks for no others."""
    *_, port = job

    def page():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()

    _until(lambda: 'matex_tf_rank_steps{host="' in page())
    text = page()
    assert 'matex_tf_ranks_alive{script="train.py"} 1.0' in text
    names = {line.split("{")[0] for line in text.splitlines() if not line.startswith("#")}
    dashboard = json.loads((Path(prometheus.__file__).parent / "grafana.json").read_text())
    asked = {target["expr"].partition("{")[0] for panel in dashboard["panels"] for target in panel["targets"]}
    assert asked <= names and len(asked) >= 8


def test_metrics_that_cannot_be_served():
    """A port that is none, and one that is taken."""
    for text in ("x", "0", "70000", "host:"):
        with pytest.raises(SettingError, match="--metrics"):
            prometheus.Metrics(text)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingError, match="in use"):
        prometheus.Metrics(str(taken.getsockname()[1])).listen()
    with pytest.raises(SettingError, match="--watch off"):
        settings.Settings().changed(watch=False, metrics="9400").refuse_conflicts()


def test_on_one_rank():
    """It is said that nothing is served."""
    chosen = settings.Settings().changed(metrics="9400")
    assert chosen.of(WatchOptions).without_effect_alone == "--metrics 9400"
    assert "--metrics 9400 has no effect" in suggestions.without_effect_alone(chosen)


@contextlib.contextmanager
def metrics(folder):
    """The port of Prometheus."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    prometheus.Metrics(str(port)).listen()

    def ask():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            answer.read()
        return doors.ANSWER

    yield port, ask


def test_many_who_say_nothing(monkeypatch, tmp_path):
    """The oldest are sent away as others come, and whoever belongs to the job gets its answer all the while."""
    doors.check_many(monkeypatch, tmp_path, metrics)


def test_one_who_says_nothing(monkeypatch, tmp_path):
    """It is sent away after a while."""
    monkeypatch.setattr(prometheus._Handler, "timeout", 0.2)
    doors.check_silent(monkeypatch, tmp_path, metrics)


@pytest.mark.variants(0)
@pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can run")
def test_several_hosts(tmp_path):
    """Ranks of other hosts report too, and any host that has the user's directory can ask."""
    (tmp_path / "meet.py").write_text(MEET % (0, "pass"))
    watched = tmp_path / "state"
    with Hosts(2) as hosts:
        line = [*hosts.on(folder=tmp_path), LAUNCHER, "run", "-n", "2", "--hosts", "h1:1,h2:1"]
        job = Job([*line, "--watch-dir", str(watched), "meet.py"], tmp_path, **hosts.environ)
        try:
            asking = [*hosts.on("h2"), LAUNCHER, "top", "--json", "--watch-dir", str(watched)]
            end, seen = time.monotonic() + 60, None
            while time.monotonic() < end and (seen is None or seen["alive"] < 2):
                asked = subprocess.run(asking, capture_output=True, text=True)
                seen = json.loads(asked.stdout) if asked.returncode == 0 else None
            assert seen and [rank["host"] for rank in seen["ranks"]] == ["h1", "h2"], asked
        finally:
            job.stop()
            job.end()
