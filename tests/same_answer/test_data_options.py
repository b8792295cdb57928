"""Each source of data with each option of `fit` about data: the answer of one rank, or its error."""

import pytest
from compare import alike, same

from tests.support.cases import data_options

_TF_DATA = {"split", "weights", "both weights"}
#: What Keras refuses, by source: on many ranks with the same error as on one.
REFUSED = {
    "arrays": {"both weights"},
    **dict.fromkeys(("tf.data", "drawing", "from_generator"), _TF_DATA),
    **dict.fromkeys(("pure", "impure"), {*_TF_DATA, "nothing"}),
    "generator": {*_TF_DATA, "nothing", "class weights"},
    "DataSet": {"both weights"},
}
#: Those that are unlike one another come first.
SOURCES = ("drawing", "DataSet", "generator", "pure", "arrays", "tf.data", "from_generator", "impure")


def test_flips(ranks):
    """The way that docs/data.md shows: other flips in each epoch, those of one rank; in parallel alike on all ranks."""
    reference = same(ranks(data_options.flips, (1, 3), meets="", parallel=False), rtol=0, atol=0)
    assert len({tuple(epoch) for epoch in reference}) == 3
    alike(ranks(data_options.flips, (3,), meets="", parallel=True))


@pytest.mark.variants(1)
@pytest.mark.parametrize("source", SOURCES)
def test_options(ranks, request, source):
    """The same history and weights; what Keras refuses is the same error on every rank."""
    for size in (2, 3) if request.config.getoption("--all") or source == "DataSet" else (2,):
        name = f"DataSet for {size}" if source == "DataSet" else source
        reference = same(ranks(data_options.fitted, (1, size), meets="", source=name))
        assert {option for option, result in reference.items() if isinstance(result, str)} == REFUSED[source]
