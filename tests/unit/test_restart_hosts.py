"""Which hosts a job has that is started again: those that answer then, of all that it was given."""

from types import SimpleNamespace

from matex_tf.launch import restart
from matex_tf.settings import Settings


def test_hosts_go_and_come(monkeypatch, tmp_path):
    """A host that does not answer is left out with its share of the ranks, and is taken back once it does."""
    started, silent, codes = [], [{"b"}, set(), {"a", "b", "c"}], iter([137, 137, 137])
    monkeypatch.setattr(restart, "_answers", lambda host, mpirun: host not in silent[len(started) - 1])
    monkeypatch.setattr(restart, "MpirunMonitor", lambda sign: SimpleNamespace(stopped=0, dead=["rank 1 on b"]))

    def run(line, **more):
        started.append(line)
        return next(codes)

    monkeypatch.setattr(restart.mpirun_process, "run", run)
    settings = Settings.read({"checkpoint_dir": str(tmp_path)}, {})
    mpirun = SimpleNamespace(path="mpirun")
    code = restart.run(lambda ranks, hosts, more: (ranks, hosts), 6, "a:2,b:2,c:2", settings, "train.py", mpirun)
    assert code == 137
    assert started == [(6, "a:2,b:2,c:2"), (4, "a:2,c:2"), (6, "a:2,b:2,c:2")]
