"""`jit_compile=True` on N ranks: XLA compiles what lies between exchanges, and the answer is that of one rank."""

import pytest
from compare import same

from tests.support.cases import xla


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["drawing", "normalized", "own step", "attention", "recurrent"])
def test_fit(ranks, kind):
    """All methods, draws and a loss across rows among what is trained; the last batch has one row."""
    reference = same(ranks(xla.fit, kind=kind), rtol=1e-4 if kind == "attention" else 1e-5)
    assert reference["xla"] == [True]


@pytest.mark.variants(0)
@pytest.mark.parametrize("form", ["decorator", "method", "function"])
def test_loop(ranks, form):
    """A script's own `tf.function(jit_compile=True)`."""
    reference = same(ranks(xla.loop, form=form))
    assert reference["xla"] == [True]
