"""The part of a random draw that belongs to some rows: the same bits as in the draw of the whole batch."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS = 20
FLOATS = ("float16", "bfloat16", "float32", "float64")
KINDS = {
    "normal": FLOATS,
    "uniform": FLOATS,
    "integers": ("int32", "int64"),
    "bits": ("int32", "int64", "uint32", "uint64"),
    "truncated_normal": FLOATS,
    "gamma": ("float16", "float32", "float64"),
}


@pytest.fixture(scope="module")
def random_rows():
    """Imported when a test is run: nothing else imports TensorFlow where tests are collected."""
    from tests.support import random_rows

    with random_rows.among_ranks():
        yield random_rows


@settings(deadline=None, max_examples=80)
@given(
    kind_and_dtype=st.sampled_from([(kind, dtype) for kind, dtypes in KINDS.items() for dtype in dtypes]),
    rest=st.lists(st.integers(1, 9), max_size=3),
    span=st.tuples(st.integers(0, ROWS - 1), st.integers(1, ROWS)).filter(lambda span: span[0] < span[1]),
)
def test_layout_of_numbers(random_rows, kind_and_dtype, rest, span):
    """For every kind of number, every shape, and every part of the rows."""
    assert random_rows.layout_is_kept(*kind_and_dtype, rest, *span)


@pytest.mark.parametrize("eagerly", [False, True])
def test_every_op(random_rows, eagerly):
    """Twice in a row, so that states must have moved on as for the whole batch."""
    assert random_rows.wrong_ops(eagerly) == set()
