"""What a user sees of matex_tf when a script starts: two lines, and with `fit` those of the README."""

import json
import re
import shlex
from pathlib import Path

import pytest
from jobs import BIN, Job

pytestmark = pytest.mark.timeout(200)

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.py").is_file())


def cells():
    """What docs/notebooks.md puts into the cells of a notebook."""
    text = (ROOT / "docs" / "notebooks.md").read_text()
    return [re.sub("^   ", "", cell, flags=re.M) for cell in re.findall("   ```python\n(.*?)   ```", text, re.S)]


def test_a_plain_script(tmp_path):
    """The script of a notebook: two lines on standard error, and losses of the README, whose script trains the same."""
    write, start, look = cells()
    first, _, script = write.partition("\n")
    assert first == "%%writefile train.py" and start.startswith("!") and '"history.json"' in look
    (tmp_path / "train.py").write_text(script)
    line = shlex.split(start[1:].replace("-n 4", "-n 2"))
    ended = Job([str(BIN / word) if word == "matex-tf" else word for word in line], tmp_path, MATEX_PROGRESS="off").end(
        180
    )
    assert ended.code == 0, ended.err
    printed = (ROOT / "README.md").read_text().partition("$ matex-tf run -n 4 examples/first.py\n")[2]
    wanted = printed.partition("```")[0].replace("4 ranks", "2 ranks").splitlines()
    # A busy machine may also get a line on how long input takes.
    shown = [line for line in ended.err.splitlines() if line.startswith("matex_tf") and "% of" not in line]
    threads = r"\d+ threads? each.*"  # and how many cores the ranks share, is the machine's
    assert [re.sub(threads, "", line) for line in shown] == [re.sub(threads, "", line) for line in wanted[:2]]
    losses = json.loads((tmp_path / "history.json").read_text())["loss"]
    assert losses == pytest.approx([float(number) for number in re.findall(r"\d\.\d+", wanted[2])], rel=1e-4)
    assert "matex_tf" not in ended.out and (tmp_path / "model.keras").stat().st_size > 0


LOOP = """
import keras
import tensorflow as tf

keras.utils.set_random_seed(1)
rows = tf.data.Dataset.range(40).map(lambda n: (tf.cast(n, tf.float32)[None],) * 2)
model = keras.Sequential([keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(1e-4)
for epoch in range(2):
    for x, y in rows.batch(10):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
"""


def test_an_eager_loop(tmp_path):
    """Two lines: how the loop and its pipeline are split, and why the loop is not compared with one rank, are one."""
    (tmp_path / "train.py").write_text(LOOP)
    line = [str(BIN / "matex-tf"), "run", "-n", "2", "train.py"]
    ended = Job(line, tmp_path, MATEX_PROGRESS="off").end(180)
    assert ended.code == 0, ended.err
    shown = [line for line in ended.err.splitlines() if line.startswith("matex_tf") and "% of" not in line]
    assert len(shown) == 2, shown
    assert shown[1].startswith(
        "matex_tf: train.py:10: each batch of this loop is split among 2 ranks (--shard-loops), and each rank runs 1 "
        "map of the tf.data pipeline for its rows of each batch (--data exact). "
        "It is not compared with one rank: no tf.function was called with the batch itself."
    )
