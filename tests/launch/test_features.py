"""The core without any feature: a copy of the package from which all their folders were taken."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from jobs import Job

from matex_tf.features import found
from scripts.rooms import modules

ROOT = Path(__file__).parents[2]
SCRIPT = """
import keras, numpy as np
import matex_tf
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
model.compile(keras.optimizers.SGD(0.1), "mse")
x = np.arange(30, dtype="float32").reshape(10, 3) / 30
model.fit(x, x.sum(1, keepdims=True), batch_size=10, epochs=2, verbose=0)
print(matex_tf.__file__, *model.get_weights()[0][:, 0])
"""


IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:  # of a library that is not installed here
        assert not error.name.startswith("matex_tf"), f"{name}: {error}"
print(len(sys.argv) - 1, sys.modules["matex_tf"].__file__)
"""


@pytest.mark.skipif(not found(), reason="no feature is there")
def test_the_core_alone(tmp_path):
    """All its modules can be imported, and two ranks train as NumPy says. Commands and settings of features are
    unknown, and the rest is there."""
    copy = tmp_path / "copy" / "matex_tf"
    ours = sorted(path.parent.name for path in (ROOT / "matex_tf" / "features").glob("*/__init__.py"))
    left_out = shutil.ignore_patterns(*ours)
    shutil.copytree(
        ROOT / "matex_tf",
        copy,
        ignore=lambda folder, names: left_out(folder, names) if folder.endswith("features") else (),
    )
    for room in ("readers", "patches"):
        shutil.copytree(ROOT / room, copy / room)
    assert ours and not [name for name in ours if (copy / "features" / name).exists()]
    (tmp_path / "train.py").write_text(SCRIPT)

    def matex(*words):
        code = "import sys; from matex_tf.cli.main import main; sys.exit(main(sys.argv[1:]))"
        return Job([sys.executable, "-c", code, *words], tmp_path, PYTHONPATH=str(copy.parent)).end(200)

    core = [name for name in modules() if not name.startswith(tuple(f"features.{one}" for one in ours))]
    names = [f"matex_tf.{name}" for name in core if name and not name.endswith("__main__")]
    done = Job([sys.executable, "-c", IMPORTS, *names], tmp_path, PYTHONPATH=str(copy.parent)).end(200)
    assert done.code == 0, done.err
    assert done.out.split() == [str(len(names)), str(copy / "__init__.py")]
    shown = matex("--help")
    commands = [name for one in ours for name in found()[one].commands]
    assert shown.code == 0 and "  run  " in shown.out
    assert not [name for name in commands if f"\n  {name} " in shown.out]
    for name in commands:
        assert "which is not installed: pip install 'matex_tf" in matex(name, "x").err
    ended = matex("run", "-n", "2", "train.py")
    assert ended.code == 0, ended.err
    place, *weights = ended.out.split()
    assert place.startswith(str(copy))
    x = np.arange(30).reshape(10, 3) / 30
    expected = np.zeros(3)
    for _ in range(2):  # steps of SGD on all rows
        expected -= 0.1 * 2 / 10 * x.T @ (x @ expected - x.sum(1))
    np.testing.assert_allclose([float(one) for one in weights], expected, rtol=1e-5)
    assert "computes its part of each batch" in ended.err
