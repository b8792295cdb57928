"""Keras on JAX on two hosts with two ranks each, emulated on this machine by benchmarks/hosts.py."""

import importlib.util
import json
import sys

import pytest
from jobs import LAUNCHER, Job
from on_hosts import left

from benchmarks.hosts import Hosts, unavailable

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can run"),
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed (matex_tf[jax])"),
]

TRAIN = """
import json, os, socket
import keras, numpy as np
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(21, 6)).astype("float32")
model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.2), keras.layers.BatchNormalization()])
model.compile("adam", "mse")
history = model.fit(x, x[:, :4], batch_size=16, epochs=2, verbose=0)
seen = [history.history["loss"], model.predict(x, verbose=0).sum().item()]
with open(f"seen.{os.environ.get('OMPI_COMM_WORLD_RANK', 'alone')}", "w") as file:
    json.dump([*seen, socket.gethostname()], file)
"""


@pytest.mark.variants(0)
@pytest.mark.parametrize("proxy", ["http://192.0.2.1:9"])
def test_training(tmp_path, proxy):
    """The answer of one rank, though the environment names a proxy that nobody answers at."""
    (tmp_path / "script.py").write_text(TRAIN)
    environ = {"KERAS_BACKEND": "jax", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    alone = Job([sys.executable, "script.py"], tmp_path, **environ)
    with Hosts(2) as hosts:
        line = [*hosts.on(folder=tmp_path), LAUNCHER, "run", "-n", "4", "--hosts", "h1:2,h2:2", "script.py"]
        job = Job(line, tmp_path, **{**hosts.environ, **environ, "http_proxy": proxy, "https_proxy": proxy})
        ended = job.end(180)
        assert ended.code == 0, ended.err
        assert left(hosts, job, 10) == []
    assert alone.end(60).code == 0
    losses, predicted, _ = json.loads((tmp_path / "seen.alone").read_text())
    for rank in range(4):
        mine, sums, host = json.loads((tmp_path / f"seen.{rank}").read_text())
        assert mine == pytest.approx(losses, rel=1e-4) and sums == pytest.approx(predicted, rel=1e-4)
        assert host == ("h1" if rank < 2 else "h2")
