"""`--faults restart`: when a rank dies the job starts again and ends with the answer of one in which none died."""

import json
import sys
from pathlib import Path

import pytest
import restart_scripts
import warm
from chaos import differences
from jobs import Ended, Job

from matex_tf import checkpoints
from matex_tf.checkpoints import Checkpoints, Damaged, Place

pytestmark = pytest.mark.timeout(600)

AGAIN = Path(__file__).with_name("again.py")


def opened(path: Path, resumed: bool = False) -> tuple[Checkpoints, list[str]]:
    """Checkpoints in a directory, and what they say."""
    said: list[str] = []
    made = Checkpoints(path, resumed, said.append)
    made.open()
    return made, said


def test_a_checkpoint_is_whole(tmp_path):
    """What was written is read; a file that is cut off or changed anywhere is known by it."""
    path = tmp_path / "file"
    state = {"values": [bytes(range(256)) * 20], "step": 3}
    checkpoints.write(path, state)
    assert checkpoints.read(path) == state and [p.name for p in tmp_path.iterdir()] == ["file"]
    whole = path.read_bytes()
    for size in (0, 10, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(Damaged, match=r"cut off|damaged"):
            checkpoints.read(path)
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(Damaged):
            checkpoints.read(path)


def test_a_writer_that_dies(tmp_path, monkeypatch):
    """Whatever happens while a checkpoint is written, the one that was there stays as it was."""
    path = tmp_path / "fit-0001.done"
    checkpoints.write(path, "before")
    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:

            def dies(*_):
                raise KeyboardInterrupt

            patch.setattr(checkpoints.os, step, dies)
            with pytest.raises(KeyboardInterrupt):
                checkpoints.write(path, "after")
        assert checkpoints.read(path) == "before"
    opened(tmp_path, resumed=True)
    assert not list(tmp_path.glob(".*")), "drafts are cleared away"


def test_two_are_kept(tmp_path):
    """Of the fit that is under way the newest two; of one that is complete, its end."""
    store, _ = opened(tmp_path)
    for epoch, step in ((0, 10), (0, 20), (1, 5), (11, 0)):
        store.save(Place(1, epoch, step), lambda at=(epoch, step): at)
    store.finish()
    assert store.places(1) == [Place(1, 11, 0), Place(1, 1, 5)]
    store.save(Place(1), lambda: "end")
    store.save(Place(2, 0, 3), lambda: "next")
    store.finish()
    assert store.places(1) == [Place(1)] and store.find(1) == (Place(1), "end")
    assert opened(tmp_path, resumed=True)[0].find(2) == (Place(2, 0, 3), "next")
    assert opened(tmp_path)[0].find(2) is None, "a job that does not resume begins anew"


def test_a_damaged_one_falls_back(tmp_path):
    """To the older one, with a line that says so; in the end to none."""
    store, said = opened(tmp_path)
    for step in (1, 2):
        store.save(Place(1, 0, step), lambda step=step: step)
    store.finish()
    newest = tmp_path / Place(1, 0, 2).name
    newest.write_bytes(newest.read_bytes()[:-3])
    assert store.find(1) == (Place(1, 0, 1), 1)
    assert newest.name in said[0] and "an older one takes its place" in said[0]
    (tmp_path / Place(1, 0, 1).name).write_bytes(b"")
    assert store.find(1) is None and len(said) == 2 and not store.places(1)


def test_a_disk_that_is_full(tmp_path):
    """Training goes on without the checkpoint, and a line says why."""
    store, said = opened(tmp_path)

    def full():
        raise OSError(28, "No space left on device")

    store.save(Place(1, 0, 1), full)
    store.save(Place(1, 0, 2), lambda: 2)
    store.finish()
    assert "No space left on device" in said[0] and store.find(1) == (Place(1, 0, 2), 2)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Forks ranks that have imported TensorFlow."""
    with warm.Server(tmp_path_factory.mktemp("warm") / "socket") as running:
        yield running


def run(server: warm.Server, folder: Path, ranks: int, *settings: str, dies: object = (), **environ: str) -> Ended:
    """Run script.py of a folder, with checkpoints as often as can be."""
    line = [sys.executable, str(AGAIN), str(server.path), str(ranks), "--seed", "5", "--checkpoint-seconds", "0.001"]
    return Job([*line, *settings, "script.py"], folder, DIES=json.dumps(dies), **environ).end(200)


def alone(server: warm.Server, folder: Path) -> dict:
    """What script.py gives on one rank, without matex_tf's help."""
    folder.mkdir()
    (folder / "script.py").write_text((folder.parent / "script.py").read_text())
    ended = Job([*warm.command(server.path), "--seed", "5", "script.py"], folder).end(100)
    assert ended.code == 0, ended
    return json.loads((folder / "result.").read_text())


def results(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("result.*"))]


def test_in_the_middle_of_an_epoch(server, tmp_path):
    """A rank dies in the first fit, rank 0 in the second: losses, History, weights, logs are those of one rank."""
    (tmp_path / "script.py").write_text(restart_scripts.TWO_FITS)
    expected = alone(server, tmp_path / "alone")
    ended = run(server, tmp_path, 3, dies=[[1, 1, 1, 4], [0, 2, 2, 3]])
    assert ended.code == 0, ended
    assert [differences(expected, found) for found in results(tmp_path)] == [[], [], []]
    for line in (
        *("rank 1 on ", "restart 1 of 3, with 3 ranks", " of fit 1, "),
        *("rank 0 on ", "restart 2 of 3", "fit 1 was complete", " of fit 2, ", "s after the death"),
    ):
        assert line in ended.err, ended.err
    assert not (tmp_path / ".matex-checkpoints").exists()


def test_what_is_kept(server, tmp_path):
    """Everything that a training goes on with: of callbacks, layers, optimizers, pipelines."""
    (tmp_path / "script.py").write_text(restart_scripts.FEATURES)
    assert run(server, tmp_path, 3).code == 0
    expected = results(tmp_path)
    ended = run(server, tmp_path, 3, dies=[[0, 1, 2, 7], [2, 2, 1, 6], [1, 3, 2, 3]])
    assert ended.code == 0 and "restart 3 of 3" in ended.err, ended
    for before, found in zip(expected, results(tmp_path), strict=True):
        assert differences(before, found) == []


def test_max_restarts_and_resume(server, tmp_path):
    """The job ends with the code of the death and what to do; by hand it goes on, from the older checkpoint where the
    newest is damaged, on one rank too."""
    (tmp_path / "script.py").write_text(restart_scripts.TWO_FITS)
    expected = alone(server, tmp_path / "alone")
    ended = run(server, tmp_path, 3, "--max-restarts", "0", dies=[[2, 1, 2, 5]])
    assert ended.code != 0 and "0 restarts were allowed" in ended.err and "--resume on" in ended.err, ended
    store = Checkpoints(tmp_path / ".matex-checkpoints" / "script", True, print)
    newest, older = store.places(1)
    path = store.path / newest.name
    path.write_bytes(path.read_bytes()[:-100])
    for path in tmp_path.glob("result.*"):
        path.unlink()
    ended = run(server, tmp_path, 1, "--max-restarts", "0", "--resume", "on")
    assert ended.code == 0 and f"goes on at {older}" in ended.err and "an older one takes its place" in ended.err, ended
    assert [differences(expected, found) for found in results(tmp_path)] == [[]]


def test_errors_are_not_restarted(server, tmp_path):
    """An exception of the script ends the job; another model than that of the checkpoint is an error in words."""
    (tmp_path / "script.py").write_text(restart_scripts.ANOTHER)
    ended = run(server, tmp_path, 2)
    assert ended.code == 1 and "an error of the script" in ended.err and "restart 1" not in ended.err, ended
    ended = run(server, tmp_path, 2, "--max-restarts", "0", dies=[[1, 1, 1, 4]])
    assert ended.code not in (0, 1), ended
    ended = run(server, tmp_path, 2, "--resume", "on", UNITS="3")
    assert ended.code == 1 and "kernel float32 (8, 3) where the checkpoint has kernel float32 (8, 2)" in ended.err
    assert "restart 1" not in ended.err, ended
