"""The examples on Keras 2, each as it is: on three ranks they print the losses that they print on one."""

import importlib.metadata
import re
from pathlib import Path

import numpy as np
import pytest
from jobs import LAUNCHER, Job

SCRIPTS = sorted((Path(__file__).resolve().parents[3] / "examples" / "keras2").glob("*.py"))


def lacking(script):
    """What a script needs that is not installed, in words; empty where all is there."""
    names = re.findall(r"^(?:import|from) (tf_keras|tensorflow_probability)\b", script.read_text(), re.MULTILINE)
    for name in names:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"needs {name}: pip install {name}"
        tensorflow = importlib.metadata.version("tensorflow-cpu")
        if name == "tensorflow_probability" and tuple(map(int, tensorflow.split(".")[:2])) < (2, 18):
            return f"{name} {version} needs TensorFlow 2.18, and here is {tensorflow}"
    return ""


def losses(script, ranks, folder):
    """The losses that a script prints, and what is said of it."""
    ended = Job([LAUNCHER, "run", "-n", str(ranks), str(script)], folder, TF_USE_LEGACY_KERAS="1").end(280)
    assert ended.code == 0, ended
    (found,) = re.findall(r"^loss by epoch: (.*)$", ended.out, re.MULTILINE)
    return np.array(found.split(), float), ended.err


@pytest.mark.variants(0)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_example(script, tmp_path):
    """Bayesian layers and a variational autoencoder, a frozen backbone, text, windows of a series, class weights."""
    if why := lacking(script):
        pytest.skip(why)
    one, _ = losses(script, 1, tmp_path)
    three, said = losses(script, 3, tmp_path)
    assert len(one) >= 4 and np.isfinite(one).all(), one
    np.testing.assert_allclose(three, one, rtol=1e-3, atol=2e-5, err_msg=said)
