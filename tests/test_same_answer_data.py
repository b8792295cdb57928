"""Every kind of data: the same losses, weights, evaluation and predictions on 1, 2, 3 and 4 ranks."""

import pytest
from compare import same

KINDS = [
    "numpy_arrays",
    "digits",
    "lists",
    "tuples",
    "dicts",
    "frames",
    "tensors",
    "dataset",
    "dataset_with_weights",
    "dataset_repeat",
    "dataset_unknown",
    "dataset_drop_remainder",
    "pydataset",
    "sequence",
    "generator",
    "small_batches",
    "targets_of_two_axes",
    "sparse",
    "strings",
]


@pytest.mark.parametrize("kind", KINDS)
def test_data(ranks, kind):
    """Shared out by any number of ranks, the data give the answer of one rank, in the order of the rows."""
    reference = same(ranks(f"data:{kind}", (1, 2, 3, 4)))
    losses = reference["history"]["loss"]
    assert len(losses) == 3 and losses[-1] < losses[0]
