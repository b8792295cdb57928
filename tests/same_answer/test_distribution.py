"""Scripts in the scope of a tf.distribute strategy: the answer of one replica on one rank."""

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
