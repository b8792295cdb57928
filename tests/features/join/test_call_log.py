"""What compiled steps have returned, and who reads variables beside them."""

import numpy as np
import pytest
import tensorflow as tf

from matex_tf.features.join.patches import call_log
from matex_tf.features.join.patches.call_log import CallLog
from matex_tf.features.join.patches.side_reads import SideReads


def test_calls():
    """Another rank has them all, however they were put together and in whatever parts they came."""
    log, other = CallLog(), CallLog()
    said = []
    for number in range(700):
        outputs = [float(number), [number] * (1 + number % 2)] if number % 50 else [[True, False]]
        said.append((number % 3, outputs))
        log.add(number % 3, [tf.constant(one) for one in outputs])
        if number in (0, 5, 300):
            other.extend(log.since(other.count))
    other.extend(log.since(other.count))
    assert other.count == log.count == 700
    for number, (step, outputs) in enumerate(said):
        found, arrays = other.call(number)
        assert found == step and [one.tolist() for one in arrays] == outputs


@pytest.mark.parametrize(("output", "why"), [(np.ones(999), "more than"), ("text", "values of string")])
def test_too_much(monkeypatch, output, why):
    """What is too large, or not of numbers, is not kept, nor is anything from then on."""
    monkeypatch.setattr(call_log, "MOST_BYTES", 5000)
    log = CallLog()
    log.add(0, [tf.constant(1.0)])
    assert len(log.since(0)) == 1 and not log.why_not
    log.add(0, [tf.constant(output)])
    log.add(0, [tf.constant(1.0)])
    assert why in log.why_not and log.since(0) == [] and log.count == 3


@pytest.fixture
def seeing():
    """What sees reads, which gives [5, 6] for them, and the names that it is told."""
    told = []
    reads = SideReads(lambda compute: tf.constant([5.0, 6.0]), told.append)
    yield reads, told
    reads.relax()
    for (name, cls), original in reads._originals.items():
        setattr(cls, name, original)


def test_reads(seeing):
    """Whoever reads a variable gets the value of the job, or is seen; who assigns to it, or needs its shape, is not."""
    one, other = tf.Variable([1.0, 2.0], name="one"), tf.Variable([3.0, 4.0], name="other")
    compiled = tf.function(lambda: one * 2.0)
    compiled()
    reads, told = seeing
    reads.watch([(one.handle, "one")], strict=True)
    for look in (one.numpy, one.value, one.read_value, lambda: one + 0.0, lambda: np.asarray(one), lambda: one[:]):
        np.testing.assert_array_equal(look(), [5, 6])
    other.assign(one)
    np.testing.assert_array_equal(other, [5, 6])
    harmless = [lambda: other.numpy(), lambda: other.assign([1.0, 0.0]), lambda: (one.shape, one.name, one.dtype)]
    for look in (*harmless, lambda: one.assign([0.0, 0.0]), lambda: one.assign_add(other), lambda: one.assign_sub(one)):
        look()
    assert not told
    for look in (
        lambda: tf.gather(one, [0]),
        compiled,
        lambda: tf.raw_ops.ReadVariableOp(resource=one.handle, dtype="float"),
    ):
        look()
        assert told and set(told) == {"one"}
        told.clear()
    tf.data.Dataset.range(2).map(lambda number: one[0])
    assert set(told) == {"one"}
    told.clear()
    with reads.trusted():
        assert one.numpy().tolist() == [-4, -6]  # nothing, and [1, 0], less the [5, 6] of the job
    reads.relax()
    compiled()
    assert not told and one.numpy().tolist() == [5, 6]


def test_a_pipeline_that_reads(seeing):
    """A pipeline that was made before, and reads the variable by itself, is seen."""
    one = tf.Variable(1.0)
    pipeline = tf.data.Dataset.range(2).map(lambda number: one * 1.0)
    reads, told = seeing
    reads.watch([(one.handle, "one")], strict=True)
    assert told and pipeline is not None
