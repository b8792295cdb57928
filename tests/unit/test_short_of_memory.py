"""Where memory is short: what names `--shard`."""

import pytest
import tensorflow as tf

from matex_tf.cli import doctor
from matex_tf.core.output import Output
from matex_tf.core.world import World
from matex_tf.job.finalize import Finalizer


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (MemoryError("no room"), True),
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), True),
        (ValueError("no room"), False),
    ],
)
def test_an_error_of_a_rank(error, named):
    """One that is about memory has a line about `--shard` after it."""
    code, text = Finalizer(World(), Output())._report(error)
    assert code == 1 and ("--shard" in text.splitlines()[-1]) == named


def test_doctor():
    """The memory of the machine, and of a rank on each core."""
    found = {one.what: one.found for one in doctor.machine()}
    assert "GiB" in found["Memory"] and "--shard state" in found["Memory"]
