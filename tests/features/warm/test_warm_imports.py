"""`--warm-imports on`: jobs whose ranks are forked by a server of their node. The server itself: test_warm.py."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from jobs import LAUNCHER, MEET, Job
from there import case

from matex_tf.features.warm import imports
from matex_tf.job.target import Target

pytestmark = pytest.mark.timeout(400)

NAMES = str(Path(__file__).resolve().parents[2] / "support" / "patched_names.py")
WARM = ("--warm-imports", "on")
#: Ranks that are killed, or that all end with the job.
SHRINK = """
import os, signal
import keras, numpy as np, matex_tf
x = np.random.RandomState(0).rand(64, 4).astype("float32")
class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if RANK == 1 and batch == 2 and os.environ.get("MATEX_RESTARTS", "0") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
RANK, parent = matex_tf.rank(), os.getppid()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, x[:, :1], batch_size=16, epochs=3, verbose=0, callbacks=[Dies()])
print("losses", len(history.history["loss"]), "of", matex_tf.size())
open(f"parent.{RANK}", "w").write(str(parent))
"""


def run(folder, ranks, *words, seconds=150, **environ):
    return Job([LAUNCHER, "run", "-n", str(ranks), *words], folder, **environ).end(seconds)


def said(folder, name, ranks):
    return [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(ranks)]


def test_an_import_that_rebinds_the_path(tmp_path):
    """As opencv does, which Keras imports where it is installed: another list takes the place of `sys.path`."""
    (tmp_path / "packages" / "cv2").mkdir(parents=True)
    (tmp_path / "packages" / "cv2" / "__init__.py").write_text(
        "import sys\nkept = sys.path[:]\nsys.path.insert(1, 'of cv2')\nsys.path = kept\nHERE = True\n"
    )
    (tmp_path / "script.py").write_text(
        "import json, os, sys, keras, matex_tf\n"
        "said = sys.modules['cv2'].HERE, os.getppid(), sys.path\n"
        "json.dump(said, open(f'said.{matex_tf.rank()}', 'w'))\n"
    )
    ended = run(tmp_path, 2, *WARM, "script.py", PYTHONPATH=str(tmp_path / "packages"))
    assert ended.code == 0, ended.err
    assert "for itself" not in ended.err
    (here, parent, path), other = said(tmp_path, "said", 2)
    assert here and [here, parent, path] == other
    assert path[0] == str(tmp_path) and "of cv2" not in path


@pytest.mark.variants(0)
def test_the_same_as_with_imports_of_its_own(tmp_path):
    """The same losses and draws; the same names lead to patches, in all modules; nothing of the launcher's is left. The
    ranks have one parent, which is gone when they are."""
    folder = tmp_path / "a b"
    folder.mkdir()
    job = Job([LAUNCHER, "run", "-n", "2", "--seed", "3", *WARM, NAMES, "warm"], folder)
    warm_job = job.end(200)
    cold_job = run(folder, 2, "--seed", "3", NAMES, "cold")
    assert (warm_job.code, warm_job.out) == (cold_job.code, cold_job.out) == (0, "trained\n"), (
        warm_job.err + cold_job.err
    )
    assert "imports TensorFlow for itself" not in warm_job.err
    warm, cold = said(folder, "warm", 2), said(folder, "cold", 2)
    assert warm[0].pop("parent") == warm[1].pop("parent")
    for mine, other in zip(warm, cold, strict=True):
        other.pop("parent")
        assert (mine.pop("argv"), other.pop("argv")) == ([NAMES, "warm"], [NAMES, "cold"])
        assert len(mine["names"]) > 500
        names = {*mine.pop("names")} - {"os: putenv"}  # which looks at what the script sets too late
        assert sorted(names ^ {*other.pop("names")}) == []
        assert mine == other
    assert job.left() == []


def test_a_killed_rank_ends_the_job(tmp_path):
    """As ever: mpirun names it, no process and no file stays."""
    (tmp_path / "script.py").write_text(MEET % (1, "pass"))
    job = Job([LAUNCHER, "run", "-n", "3", *WARM, "script.py"], tmp_path)
    os.kill(int(job.await_file(tmp_path / "pid", 120)), signal.SIGKILL)
    ended = job.end()
    assert ended.code == 128 + signal.SIGKILL
    assert re.search(r"process rank 1 .*exited on", ended.err)
    assert job.left() == []


@pytest.mark.variants(0)
@pytest.mark.parametrize("how, size", [("shrink", 2), case("restart", "restart", 3)])
def test_faults(tmp_path, how, size):
    """A rank is killed: the others go on, or the job starts again, with a server of its own."""
    (tmp_path / "script.py").write_text(SHRINK)
    ended = run(tmp_path, 3, *WARM, "--faults", how, "script.py")
    assert ended.code == 0, ended.err
    assert f"losses 3 of {size}\n" in ended.out
    assert len({file.read_text() for file in tmp_path.glob("parent.*")}) == 1


@pytest.mark.variants(0)
@pytest.mark.parametrize("end, code", [("raise ValueError('no')", 1), ("sys.exit(7)", 7), ("time.sleep(60)", 130)])
def test_the_end(tmp_path, end, code):
    """Codes, tracebacks and Ctrl-C are those of any job; stdin reaches rank 0."""
    (tmp_path / "script.py").write_text(
        "import os, sys, time, matex_tf\nif matex_tf.rank() == 0:\n    print(sys.stdin.read())\n"
        f"    open('there', 'w').write('x')\nif matex_tf.rank() == 1:\n    {end}\n"
    )
    job = Job([LAUNCHER, "run", "-n", "2", *WARM, "script.py"], tmp_path)
    job.process.stdin.write("a line\n")
    job.process.stdin.close()
    job.process.stdin = None
    job.await_file(tmp_path / "there", 120)
    if code == 130:
        job.process.send_signal(signal.SIGINT)
    ended = job.end()
    assert ended.code == code, ended.err
    assert "a line" in ended.out
    assert job.left() == []


def test_what_a_script_sets_itself(tmp_path):
    """Too late for an import that has been: seen in the text of the script, ranks import for themselves, and say so."""
    script = tmp_path / "script.py"
    for text, name in {
        "import os\nos.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'": "TF_ENABLE_ONEDNN_OPTS",
        "os.environ.setdefault(\n    'KERAS_BACKEND', 'tensorflow')": "KERAS_BACKEND",
        "os.environ.update({'XLA_FLAGS': '--x'})": "XLA_FLAGS",
        "os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'": "",
        "print(os.environ['OMPI_COMM_WORLD_RANK'], 'TF_X')\n" + "#" * 100 + "'TF_X'": "",
    }.items():
        script.write_text(text)
        assert imports.set_by_script(Target(str(script), ())) == name or not name, text
    script.write_text("os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'")
    assert imports.set_by_script(Target(str(script), ())) == ""
    (tmp_path / "helper.py").write_text("import os\nos.environ['XLA_FLAGS'] = '--x'")
    (tmp_path / "other.py").write_text("import os\nos.environ['TF_XLA_FLAGS'] = '--x'")
    script.write_text("import os, numpy\nfrom helper import nothing\n")
    assert imports.set_by_script(Target(str(script), ())) == "XLA_FLAGS"


def test_where_many_ranks_share_a_core(tmp_path, monkeypatch):
    """`auto`: four ranks of a core or more, of a script that imports TensorFlow or Keras."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    script = Target(str(tmp_path / "script.py"), ())
    for text, imported in {
        "import os\nfrom keras import layers\n": True,
        "import tensorflow as tf": True,
        "import kerasx\nif x:\n    import keras": False,
    }.items():
        (tmp_path / "script.py").write_text(text)
        wanted = {ranks: imports.asked_for("auto", ranks, script) for ranks in (0, 1, 7, 8, 64)}
        assert [ranks for ranks, is_wanted in wanted.items() if is_wanted] == ([8, 64] if imported else [])
        assert not imports.asked_for("off", 64, script) and imports.asked_for("on", 2, script)


@pytest.mark.variants(0)
@pytest.mark.skipif((os.cpu_count() or 1) > 2, reason="four ranks a core are too many for a test on this machine")
def test_by_itself(tmp_path):
    """Nobody has asked: ranks have one parent, which has imported."""
    (tmp_path / "script.py").write_text(
        "import os, sys\nthere = 'keras' in sys.modules\nimport keras, matex_tf\n"
        "open(f'parent.{matex_tf.rank()}', 'w').write(f'{there} {os.getppid()}')\n"
    )
    ended = run(tmp_path, 4 * (os.cpu_count() or 1), "script.py")
    assert ended.code == 0, ended.err
    (said,) = {file.read_text() for file in tmp_path.glob("parent.*")}
    assert said.startswith("True ")


@pytest.mark.variants(0)
@pytest.mark.parametrize("name, code", [("TF_ENABLE_ONEDNN_OPTS", 0), ("TF_USE_LEGACY_KERAS", 2)])
def test_what_a_module_of_the_script_sets(tmp_path, name, code):
    """A line; an error where another Keras would have trained."""
    (tmp_path / "script.py").write_text("import inner.helper")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "helper.py").write_text(f"import os\nos.environ['{name}'] = '1'\n")
    ended = run(tmp_path, 2, *WARM, "script.py")
    assert ended.code == code, ended.err
    assert f"the script sets {name}" in ended.err and "take --warm-imports off" in ended.err
