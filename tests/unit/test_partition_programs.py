"""Random programs that mix the rows of a batch, on three ranks beside one.

`python -m tests.support.partition_programs --programs 200 --seed 1000` tries more.
"""

import pytest


@pytest.fixture(scope="module")
def support():
    from tests.support import partition_programs

    return partition_programs


@pytest.mark.variants(4)
@pytest.mark.parametrize("seed", range(12))
def test_program(support, seed):
    """What it gives, and its gradients."""
    assert support.failure(seed) == ""


@pytest.mark.variants(4)
@pytest.mark.parametrize("seed", range(12))
def test_program_of_any_length(support, seed):
    """The same of batches whose rows have many lengths."""
    assert support.failure_of_lengths(seed) == ""
