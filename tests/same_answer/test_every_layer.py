"""Every layer of `keras.layers`, found by walking the module: trained on three ranks as on one.

To 1e-5, with SGD and momentum: Adam makes large steps of the rounding in gradients near zero. An eighth of the layers
in every run of the tests, all with `scripts/test --all`.
"""

import pytest
from compare import same

from tests.support.cases import every_layer

PARTS = 8


def test_walk(ranks):
    """Every layer of this Keras has an entry, or a reason why it has none."""
    assert ranks(every_layer.unknown, (1,))[1] == [[]]


@pytest.mark.variants(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_trained(ranks, part):
    """The weights and states of the model of each layer, after two epochs of ragged batches."""
    same(ranks(every_layer.trained, part=part, parts=PARTS), rtol=1e-5)


@pytest.mark.variants(0)
def test_trained_by_adam(ranks):
    """To 1e-3: Adam amplifies rounding."""
    labels = ("Dense", "Conv2D", "LSTM", "LayerNormalization", "Dropout")
    same(ranks(every_layer.trained, labels=labels, adam=True), rtol=1e-3)
