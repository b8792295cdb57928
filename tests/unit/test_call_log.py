"""What compiled steps have returned, and who reads variables beside them."""

import numpy as np
import pytest
import tensorflow as tf

from matex_tf.patches.recovery import call_log
from matex_tf.patches.recovery.call_log import CallLog
from matex_tf.patches.recovery.side_reads import SideReads


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


def test_reads():
    """Whatever takes the value of a variable, or changes it, is seen; what needs only its name or shape is not."""
    one, other = tf.Variable([1.0, 2.0], name="one"), tf.Variable([3.0], name="other")
    compiled = tf.function(lambda: one * 2.0)
    compiled()
    seen = []
    reads = SideReads(seen.append)
    reads.watch([(one.handle, "one")])
    try:
        harmless = [lambda: other.numpy(), lambda: other.assign([1.0]), lambda: (one.shape, one.name, one.dtype)]
        for look in (one.numpy, lambda: tf.square(one), lambda: tf.reduce_sum(one), lambda: one + 1.0, compiled):
            look()
            assert seen and set(seen) == {"one"}
            seen.clear()
        for look in (lambda: one.assign([0.0, 0.0]), lambda: tf.gather(one, [0]), lambda: np.asarray(one)):
            look()
            assert seen and set(seen) == {"one"}
            seen.clear()
        tf.data.Dataset.range(2).map(lambda number: one[0])
        assert set(seen) == {"one"}
        seen.clear()
        for look in harmless:
            look()
        with reads.trusted():
            one.numpy()
        assert not seen
    finally:
        reads.end()
    one.numpy()
    assert not seen


def test_a_pipeline_that_reads():
    """A pipeline that was made before, and reads the variable by itself, is seen."""
    one = tf.Variable(1.0)
    pipeline = tf.data.Dataset.range(2).map(lambda number: one * 1.0)
    seen = []
    reads = SideReads(seen.append)
    reads.watch([(one.handle, "one")])
    reads.end()
    assert seen and pipeline is not None
