"""Codecs: what comes out of the wire, and the ring that has one on every hop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from virtual import coded_allreduce, run

from matex_tf.errors import SettingError
from matex_tf.exchange.network import algorithms, codec, compressed_ring
from tests.support.cases import coded
from tests.support.cases.coded import part

NAMES = sorted(codec.CODECS)
FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
SIZES = st.integers(0, 3 * codec.Int8.block + 1)
LARGEST = float(np.finfo(np.float32).max)


def through(name, values, residual=None):
    """What comes out, and the bytes in between."""
    one = codec.create(name)
    wire, said = np.full(one.nbytes(values.size), 0xA5, np.uint8), np.full_like(values, 77)
    one.encode(values, wire, residual)
    one.decode(wire, said)
    return said, wire


def bound(name, values):
    """How far a number may be from what comes out, by its definition."""
    if name == "bf16":
        return np.abs(values) / 128 + 2.0**-133  # a subnormal loses up to the last bit of a bfloat16 subnormal
    most = np.empty(values.size)
    kind = codec.CODECS[name]
    for start in range(0, values.size, kind.block):
        block = values[start : start + kind.block].astype(np.float64)
        finite = np.abs(block[np.isfinite(block)])
        codes = kind.most - (finite.size != block.size)
        most[start : start + kind.block] = finite.max(initial=0) / codes / 2 * (1 + 1e-4) + codec.LEAST
    return most


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(values=arrays.arrays(np.float32, SIZES, elements=FLOATS))
def test_round_trip(name, values):
    """Any floats, any length: within the codec's error; NaN and infinities at their places; the same bytes again."""
    before = values.copy()
    said, wire = through(name, values)
    np.testing.assert_array_equal(values, before)
    finite = np.isfinite(values)
    np.testing.assert_array_equal(np.isnan(said), np.isnan(values))
    np.testing.assert_array_equal(said[np.isinf(values)], values[np.isinf(values)])
    assert np.isfinite(said[finite]).all()
    error = np.abs(said[finite].astype(np.float64) - values[finite])
    assert (error <= bound(name, values)[finite]).all()
    np.testing.assert_array_equal(np.sign(said[finite]) * np.sign(values[finite]) >= 0, True)
    again, wire_again = through(name, said)
    np.testing.assert_array_equal(wire_again, wire)
    np.testing.assert_array_equal(again, said)


@pytest.mark.parametrize("name", NAMES)
def test_every_length(name):
    """From none to some blocks, and around the pieces that a codec works in; error feedback and sums too."""
    random = np.random.default_rng(1)
    block = getattr(codec.CODECS[name], "block", 128)
    around = [codec.PIECE + extra for extra in (-1, 0, 1, block, block + 1)]
    for size in [*range(2 * block + 3), *around]:
        values = random.normal(size=size).astype(np.float32)
        said, _ = through(name, values)
        assert (np.abs(said - values) <= bound(name, values)).all(), size
        residual = np.zeros(size, np.float32)
        with_feedback, wire = through(name, values, residual)
        np.testing.assert_array_equal(with_feedback, said)
        np.testing.assert_array_equal(residual, values - said)
        total = np.full(size, 3, np.float32)
        codec.create(name).add(wire, total)
        np.testing.assert_array_equal(total, np.float32(3) + said)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_other_floats(name, dtype):
    """They go by way of float32; sums are rounded once."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 of its own").bfloat16
    values = np.random.default_rng(2).normal(size=1500).astype(dtype)
    values[[3, 700]] = np.nan, -np.inf
    said, wire = through(name, values)
    single = through(name, values.astype(np.float32))[0]
    np.testing.assert_array_equal(said.astype(np.float32), single.astype(dtype).astype(np.float32))
    total = np.ones(values.size, dtype)
    codec.create(name).add(wire, total)
    np.testing.assert_array_equal(total.astype(np.float32), (single + 1.0).astype(dtype).astype(np.float32))


def test_nan_of_the_lower_half():
    """A NaN of which truncation would leave an infinity stays a NaN, in the last piece too."""
    values = np.zeros(codec.PIECE + 5, np.float32)
    values.view(np.uint32)[[0, 1, codec.PIECE + 4]] = 0x7F800001, 0xFF80FFFF, 0x7FC00000
    said, _ = through("bf16", values)
    assert np.flatnonzero(np.isnan(said)).tolist() == [0, 1, codec.PIECE + 4]


@pytest.mark.parametrize("name", ["int4", "int8"])
def test_block_with_an_infinity(name):
    """The other numbers of its block keep their values, and other blocks do not notice."""
    kind = codec.CODECS[name]
    values = np.linspace(-1, 1, 2 * kind.block, dtype=np.float32)
    plain, _ = through(name, values)
    values[[0, 1, 5]] = np.inf, np.nan, -np.inf
    said, _ = through(name, values)
    np.testing.assert_array_equal(said[kind.block :], plain[kind.block :])
    assert np.abs(said[6 : kind.block] - values[6 : kind.block]).max() <= 1 / (kind.most - 1) / 2 * 1.001
    np.testing.assert_array_equal(through(name, np.full(3, -np.inf, np.float32))[0], np.full(3, -np.inf))


@pytest.mark.parametrize("name", NAMES)
def test_large_and_small(name):
    """The largest float is not infinity, and what is too small for a scale is zero."""
    said, _ = through(name, np.array([LARGEST, -LARGEST, 1], np.float32))
    assert np.isfinite(said).all() and said[0] > 0.99 * LARGEST and said[1] < -0.99 * LARGEST
    small = np.array([1e-45, -1e-40, 1e-37], np.float32)
    assert (np.abs(through(name, small)[0]) <= np.abs(small)).all()


@pytest.mark.parametrize("name", NAMES)
def test_error_feedback(name):
    """Nothing is lost over time: what came out, and what is still kept back, is what went in."""
    random = np.random.default_rng(3)
    given_, said_ = np.zeros(2000), np.zeros(2000)
    residual = np.zeros(2000, np.float32)
    for step in range(50):
        values = random.normal(size=2000).astype(np.float32)
        if step == 10:  # one bad step is not remembered
            bad = values.copy()
            bad[[0, 1999]] = np.nan, np.inf
            before = residual.copy()
            through(name, bad, residual)
            assert np.isfinite(residual).all()
            residual[:] = before
        said, _ = through(name, values, residual)
        given_ += values
        said_ += said
    np.testing.assert_allclose(said_ + residual, given_, atol=1e-4)
    assert np.abs(residual).max() < (0.6 if name == "int4" else 0.06)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_sizes(name):
    """A wire or a residual that does not fit is refused before anything is written."""
    one = codec.create(name)
    values, wire = np.zeros(10, np.float32), np.zeros(one.nbytes(10) + 1, np.uint8)
    for call in (lambda: one.encode(values, wire), lambda: one.decode(wire, values), lambda: one.add(wire, values)):
        with pytest.raises(ValueError, match="bytes on the wire"):
            call()
    with pytest.raises(ValueError, match="residual"):
        one.encode(values, wire[:-1], np.zeros(9, np.float32))
    with pytest.raises(SettingError, match="bf16, int8, int4"):
        codec.create("int2")


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(data=st.data(), size=st.integers(1, 7), count=st.integers(0, 2000), feedback=st.booleans())
def test_ring(name, data, size, count, feedback):
    """Every rank ends with the same bits, those of the definition; the messages and bytes are the ring's."""
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    parts = [(random.normal(size=count) * 10.0 ** random.integers(-3, 3)).astype(np.float32) for _ in range(size)]
    if count and data.draw(st.booleans()):
        for _ in range(3):
            special = random.choice(np.array([np.nan, np.inf, -np.inf], np.float32))
            parts[random.integers(size)][random.integers(count)] = special
    residuals = [random.normal(size=count).astype(np.float32) for _ in range(size)] if feedback else None
    expected_residuals = [residual.copy() for residual in residuals] if residuals else None
    expected = coded_allreduce(parts, codec.create(name), expected_residuals)
    whole = expected[~np.isnan(expected)]
    with np.errstate(all="ignore"):
        plain = np.sum(parts, axis=0, dtype=np.float64)
    rings = [compressed_ring.CompressedRing(codec.create(name)) for _ in range(size)]
    results = [part.copy() for part in parts]
    lanes = run(lambda lane, *more, **named: rings[lane.rank](lane, *more, **named), results,
                **({"residual": residuals} if residuals else {}))  # fmt: skip
    for result in results:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))
        # Of two NaN the sum is one of them; which one is the processor's choice.
        np.testing.assert_array_equal(result[~np.isnan(expected)].view(np.uint32), whole.view(np.uint32))
    for mine, other in zip(residuals or [], expected_residuals or [], strict=True):
        np.testing.assert_array_equal(mine, other)
    np.testing.assert_array_equal(np.isnan(results[0]), np.isnan(plain))
    np.testing.assert_array_equal(results[0][np.isinf(plain)], plain[np.isinf(plain)])
    lengths = [codec.create(name).nbytes(part.size) for part in np.array_split(parts[0], size)]
    for lane in lanes:
        assert lane.messages == 2 * (size - 1)
        assert abs(lane.bytes - 2 * (size - 1) / size * sum(lengths)) <= 8 * size + 4


@pytest.mark.parametrize("name", NAMES)
def test_ring_is_near_the_sum(name):
    """Each of the p encodings on the way of a slice adds its error and no more."""
    random = np.random.default_rng(5)
    for size in (2, 4, 8):
        parts = [random.normal(size=5000).astype(np.float32) for _ in range(size)]
        error = np.abs(coded_allreduce(parts, codec.create(name)) - np.sum(parts, axis=0))
        step = {"bf16": 2.0**-7, "int8": 1 / 254, "int4": 1 / 14}[name]
        assert error.max() <= size * step * np.sum(np.abs(parts), axis=0).max()


@pytest.mark.parametrize("name", NAMES)
def test_ring_with_feedback_loses_nothing(name):
    """All that ranks put in comes out, or lies in one of their residuals."""
    random = np.random.default_rng(6)
    residuals = [np.zeros(3000, np.float32) for _ in range(4)]
    put_in, came_out = np.zeros(3000), np.zeros(3000)
    for _ in range(20):
        parts = [random.normal(size=3000).astype(np.float32) for _ in range(4)]
        put_in += np.sum(parts, axis=0, dtype=np.float64)
        came_out += coded_allreduce(parts, codec.create(name), residuals)
    np.testing.assert_allclose(came_out + np.sum(residuals, axis=0), put_in, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_buffers_are_used_again(name):
    """A second sum of the same size takes no new memory, and a larger one does not keep the old."""
    rings = [compressed_ring.CompressedRing(codec.create(name)) for _ in range(3)]

    def one(lane, data, tag):
        return rings[lane.rank](lane, data, tag)

    run(one, [np.ones(900, np.float32) for _ in range(3)])
    held = [id(buffer) for buffer in rings[0]._free]
    run(one, [np.ones(900, np.float32) for _ in range(3)])
    assert sorted(id(buffer) for buffer in rings[0]._free) == sorted(held)
    run(one, [np.ones(9000, np.float32) for _ in range(3)])
    assert len(rings[0]._free) == 2 and all(buffer.size > 1500 for buffer in rings[0]._free)


def test_virtual_ranks_run_the_algorithms_of_the_network():
    """So that what holds for virtual ranks is said of the real ones too."""
    random = np.random.default_rng(4)
    for algorithm in (algorithms.ring, algorithms.doubling, algorithms.rabenseifner):
        for size in (1, 2, 3, 4, 6):
            parts = [random.integers(-9, 9, 50).astype(np.float32) for _ in range(size)]
            results = [part.copy() for part in parts]
            run(algorithm, results)
            for result in results:
                np.testing.assert_array_equal(result, np.sum(parts, axis=0))


@pytest.mark.parametrize("name", NAMES)
def test_ring_over_mpi(bare_ranks, name):
    """What virtual ranks compute: the same bits on every rank, step after step, with pieces beside each other."""
    values = bare_ranks(coded.summed, (4,), apart="MPI alone is tried", name=name, count=4001)[4]
    parts = [np.array_split(part(rank, 4001), 3) for rank in range(4)]
    residuals = [np.array_split(np.zeros(4001, np.float32), 3) for _ in range(4)]
    for step in range(2):
        pieces = [
            coded_allreduce(
                [parts[rank][piece] for rank in range(4)],
                codec.create(name),
                [residuals[rank][piece] for rank in range(4)],
            )
            for piece in range(3)
        ]
        expected = np.concatenate(pieces)
        for results, buffers in values:
            np.testing.assert_array_equal(results[step].view(np.uint32), values[0][0][step].view(np.uint32))
            np.testing.assert_array_equal(results[step], expected)
            assert buffers == 2 * 3
    assert np.isnan(expected[0]) and expected[-1] == -np.inf


@pytest.mark.variants(4)
@pytest.mark.parametrize("hosts", ["abcd", "aabb", "abca"])
@pytest.mark.parametrize(
    ("name", "least", "most"), [("none", 0, 1e-6), ("bf16", 1e-4, 0.02), ("int8", 1e-4, 0.02), ("int4", 1e-2, 0.4)]
)
def test_exchange_between_hosts(bare_ranks, hosts, name, least, most):
    """The same bits on every rank, rounded as the codec says; whole numbers as they are."""
    results = bare_ranks(coded.exchanged, (4,), meets="sum coded", name=name, hosts=hosts)[4]
    for off, bits in results:
        assert bits == results[0][1]
        assert least <= max(off[:2]) <= most and off[2] == 0, off


def test_exchange_on_one_host(bare_ranks):
    """What does not leave a host is not encoded."""
    for off, _ in bare_ranks(coded.exchanged, (3,), meets="sum coded", name="int8", hosts="aaa")[3]:
        assert max(off) <= 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_exchange_of_other_floats(bare_ranks, dtype):
    """They are encoded as what they are added in."""
    results = bare_ranks(coded.exchanged, (3,), meets="sum coded", name="int8", hosts="abc", dtype=dtype)[3]
    for off, bits in results:
        assert bits == results[0][1] and max(off) <= 0.03, off


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", NAMES)
def test_exchange_with_feedback(bare_ranks, name):
    """Errors do not add up: after twenty steps no more is missing than after one."""
    once, many, without = (
        max(
            bare_ranks(
                coded.exchanged, (3,), meets="sum coded", name=name, hosts="abc", feedback=feedback, steps=steps
            )[3][0][0]
        )
        for feedback, steps in ((True, 1), (True, 20), (False, 20))
    )
    assert many <= 4 * once and without >= 10 * once, (once, many, without)


@pytest.mark.parametrize("name", NAMES)
def test_exchange_of_nan_and_infinity(bare_ranks, name):
    """They arrive on every rank, at their places, and nowhere else."""
    results = bare_ranks(coded.exchanged, (3,), meets="sum coded", name=name, hosts="abc", special=True)[3]
    for said, others_finite, bits in results:
        assert np.isnan(said[0]) and said[1] == np.inf and others_finite and bits == results[0][2]
