"""Which hosts a job has that is started again: those that answer then, of all that it was given."""

from types import SimpleNamespace

from matex_tf.errors import SettingError
from matex_tf.features.restart import launcher
from matex_tf.settings import Settings

HOSTS = "a:2,b:2,c:2"


def started(monkeypatch, folder, silent, codes, hosts_now=None):
    """The ranks and hosts of each start. Args: silent: the hosts that do not answer after each of them."""
    lines, codes = [], iter(codes)
    monkeypatch.setattr(launcher, "_answers", lambda host, mpirun: host not in silent[len(lines) - 1])
    monkeypatch.setattr(launcher, "MpirunMonitor", lambda sign: SimpleNamespace(stopped=0, dead=["rank 1 on b"]))

    def run(line, **more):
        lines.append(line)
        return next(codes)

    monkeypatch.setattr(launcher.mpirun_process, "run", run)
    settings = Settings.read({"checkpoint_dir": str(folder)}, {})
    mpirun = SimpleNamespace(path="mpirun")
    code = launcher.run(lambda ranks, hosts, more: (ranks, hosts), 6, HOSTS, settings, "train.py", mpirun, hosts_now)
    return code, lines


def test_hosts_go_and_come(monkeypatch, tmp_path):
    """A host that does not answer is left out with its share of the ranks, and is taken back once it does."""
    code, lines = started(monkeypatch, tmp_path, [{"b"}, set(), {"a", "b", "c"}], [137, 137, 137])
    assert code == 137
    assert lines == [(6, HOSTS), (4, "a:2,c:2"), (6, HOSTS)]


def test_a_file_that_has_changed(monkeypatch, tmp_path, capsys):
    """The hosts are those that the file has by then, with as many ranks for each slot; or those of before."""
    now = iter(["a:2,d:8", "", HOSTS])

    def read():
        if said := next(now):
            return said
        raise SettingError("the file names no host.")

    code, lines = started(monkeypatch, tmp_path, [set(), set(), set()], [137, 137, 137, 0], read)
    assert code == 0 and lines == [(6, HOSTS), (10, "a:2,d:8"), (10, "a:2,d:8"), (6, HOSTS)]
    assert "the file names no host. The job continues on the hosts that it has" in capsys.readouterr().err
