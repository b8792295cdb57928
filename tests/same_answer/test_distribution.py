"""Scripts in the scope of a tf.distribute strategy, or of keras.distribution: the answer of one replica on one rank."""

import re

import pytest
from compare import same

from tests.support.cases import distribution


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", ["MirroredStrategy", "MultiWorkerMirroredStrategy", "OneDeviceStrategy"])
def test_fit(ranks, name):
    """`fit` in the scope of a strategy, which is said to have no part in it, once."""
    same(ranks(distribution.fit, name=name))
    said = "".join(outcome.output for outcome in ranks.last[max(ranks.last)])
    assert said.count(f"matex_tf: tf.distribute.{name}: matex_tf takes its place") == 1


@pytest.mark.variants(0)
def test_loop(ranks):
    """A loop over distributed batches, with losses divided by the size of the whole batch."""
    same(ranks(distribution.loop, (1, 3)))


@pytest.mark.parametrize("kind,sizes", [("model", (1, 2, 4)), ("data", (1, 3))])
def test_keras_distribution(ranks, kind, sizes):
    """Keras' guide: `DataParallel`, and `ModelParallel` with a map of layouts. Devices and parts have no lines."""
    same(ranks(distribution.keras_guide, sizes, kind=kind))
    said = "".join(outcome.output for outcome in ranks.last[max(ranks.last)])
    assert set(re.findall(r"keras\.distribution\.?\w*", said)) <= {"keras.distribution.initialize"}


def test_what_is_said(ranks):
    """A mesh of more devices than ranks is refused, one of fewer said; so is what keeps weights whole."""
    for refused, fewer, *lines in ranks(distribution.keras_refused, (3,))[3]:
        assert "has the device cpu:3, and the devices are 3 ranks" in refused and "-n 8" in refused
        assert "all 3 ranks are its devices, though its mesh has 2" in fewer
        of_codec, eager = lines
        assert "every rank holds whole" in of_codec and "--codec" in of_codec
        assert "every rank holds whole" in eager and "run_eagerly=True" in eager
