"""Gossip with a codec: what holds for what ranks send of their weights, whatever the codec rounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from matex_tf.errors import SettingError
from matex_tf.features.gossip.topology import Partners
from tests.features.gossip.cases import gossip as gossip_cases
from tests.features.gossip.cases import halfway
from tests.features.gossip.cases.halfway import start, traffic
from tests.features.gossip.test_gossip import SHAPES, everyone, the_same, weights_of
from tests.unit.test_codec import bound, through

PAIRS = "pairs of ranks exchange weights, and all of them meet nowhere"
CODECS = ("bf16", "int8")
FLOATS = st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([np.nan, np.inf, -np.inf])


def meet(ranks, weights):
    """One exchange; each rank's moves, copied."""
    for gossip, own in zip(ranks, weights, strict=True):
        start(gossip, own)
    for gossip in ranks:
        gossip.finish()
    return [[move.copy() for move in gossip.moves] for gossip in ranks]


def one_array(size, length, **coded):
    return everyone(size, [(length,)], **coded)


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("size", "limit"), [(2, 256), (3, 1 << 20), (5, 256), (8, 1 << 20)])
def test_the_mean_stays(size, limit, codec, feedback):
    """All moves add up to nothing, and the mean over ranks is what their own steps make of it, turn by turn."""
    ranks = everyone(size, limit=limit, codec=codec, feedback=feedback)
    start, weights = weights_of(1, seed=9)[0], weights_of(size)
    for gossip in ranks:
        gossip.refer(start)
    moved = 0.0
    for turn in range(6):
        before = [[array.copy() for array in own] for own in weights]
        work = weights_of(size, seed=turn + 1)
        moves = meet(ranks, weights)
        for own, move, step in zip(weights, moves, work, strict=True):
            for array, way, more in zip(own, move, step, strict=True):
                array += more + way
        for position in range(len(SHAPES)):
            ways = np.array([move[position] for move in moves], np.float64)
            np.testing.assert_allclose(ways.sum(axis=0), 0, atol=1e-6 * size)
            moved += np.abs(ways).sum()
            now, then, more = (
                np.mean([own[position] for own in part], axis=0, dtype=np.float64) for part in (weights, before, work)
            )
            np.testing.assert_allclose(now, then + more, atol=3e-6)
    assert moved > 1


@pytest.mark.parametrize("codec", CODECS)
def test_moves_by_their_definition(codec):
    """Half of what the codec makes of the partner's difference to the reference, less what it makes of the own."""
    random = np.random.default_rng(5)
    reference, weights = random.normal(size=1500).astype(np.float32), random.normal(size=(3, 1500)).astype(np.float32)
    ranks = one_array(3, 1500, codec=codec)
    for gossip in ranks:
        gossip.refer([reference])
    for turn in range(4):
        moves = meet(ranks, [[own.copy()] for own in weights])
        padded = np.zeros((3, ranks[0]._buckets[0].size), np.float32)
        padded[:, :1500] = weights - reference
        said = [through(codec, row)[0][:1500] for row in padded]
        for rank in range(3):
            source = Partners(3, 3).of(turn, rank)[1]
            np.testing.assert_array_equal(moves[rank][0], (said[source] - said[rank]) / 2)


@pytest.mark.parametrize("codec", CODECS)
def test_equal_weights_stay(codec):
    """Where partners have the same weights nothing moves, however far those are from the reference."""
    ranks = everyone(4, codec=codec)
    for turn in range(5):
        own = weights_of(1, seed=turn)[0]
        for moves in meet(ranks, [own] * 4):
            assert not any(move.any() for move in moves)


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_precision_of_weights(codec, feedback):
    """What is rounded is the distance that ranks have come, and not the weights: these may be as large as they like."""
    random = np.random.default_rng(5)
    reference = np.full(2000, 1000.0)
    apart = random.normal(size=(8, 2000)) / 100
    dtype = np.dtype("float64")  # so that nothing but the codec rounds
    ranks = everyone(8, [(2000,)], [dtype], kind="hypercube", codec=codec, feedback=feedback)
    for gossip in ranks:
        gossip.refer([reference])
    weights = [[reference + row] for row in apart]
    for _ in range(3):
        for own, moves in zip(weights, meet(ranks, weights), strict=True):
            own[0] += moves[0]
    off = np.abs(np.array(weights)[:, 0] - (reference + apart.mean(axis=0))).max()
    error = bound(codec, np.full(2000, np.abs(apart).max(), np.float32)).max()
    # Three turns, each with the error of both sides, halved; twice as much with what was kept.
    assert 0 < off <= 3 * error * (2 if feedback else 1)
    without = bound(codec, np.full(2000, 1000, np.float32)).max()
    assert off < without / 1000


@pytest.mark.parametrize("codec", CODECS)
def test_feedback_loses_nothing(codec):
    """Over many turns what a rank was moved by is what it would have been moved by without a codec."""
    weights = [[row] for row in np.random.default_rng(5).normal(size=(2, 700)).astype(np.float32)]
    exact = (weights[1][0].astype(np.float64) - weights[0][0]) / 2
    most = max(bound(codec, own[0]).max() for own in weights)
    off = {}
    for feedback in (False, True):
        ranks = one_array(2, 700, codec=codec, feedback=feedback)
        moved = sum(meet(ranks, weights)[0][0].astype(np.float64) for _ in range(50))
        off[feedback] = np.abs(moved - 50 * exact).max()
    assert off[True] <= 1.1 * most and off[False] > 10 * off[True], off


def test_a_new_reference_forgets_what_was_kept():
    """All ranks have the same then, and there is nothing left to say."""
    weights = weights_of(2)
    ranks = everyone(2, codec="int8", feedback=True)
    meet(ranks, weights)
    assert any(part.residual.any() for part in ranks[0]._coded)
    same = weights_of(1)[0]
    for gossip in ranks:
        gossip.refer(same)
    for moves in meet(ranks, [same] * 2):
        assert not any(move.any() for move in moves)


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("codec", CODECS)
@settings(deadline=None, max_examples=40)
@given(values=st.integers(1, 40).flatmap(lambda n: arrays.arrays(np.float32, (3, n), elements=FLOATS)))
def test_not_numbers(codec, feedback, values):
    """NaN and infinities of one rank move its partners as they would without a codec, the others' numbers stay finite,
    and none is remembered."""
    length = values.shape[1]
    plain, coded = one_array(3, length), one_array(3, length, codec=codec, feedback=feedback)
    for gossip in coded:
        gossip.refer([values[0]])  # a reference that is no number counts for nothing
    for turn in range(2):
        for moves, expected in zip(*(meet(ranks, [[own] for own in values]) for ranks in (coded, plain)), strict=True):
            special = ~np.isfinite(expected[0])
            np.testing.assert_array_equal(moves[0][special], expected[0][special], str(turn))
            assert np.isfinite(moves[0][~special]).all()
    zeros = [[np.zeros(length, np.float32)]] * 3
    for moves in meet(coded, zeros):
        assert np.isfinite(moves[0]).all()


@pytest.mark.parametrize(("codec", "part"), [("bf16", 1 / 2), ("int8", 1 / 4)])
def test_bytes(codec, part):
    """Counted where they are sent: half and a quarter of float32, the same messages, whatever the number of ranks."""
    counted = set()
    for size in (2, 3, 8):
        shapes = [(512, 300), (300,), (70, 90)]
        ranks, weights = everyone(size, shapes, codec=codec), weights_of(size, shapes)
        for _ in range(3):
            meet(ranks, weights)
        for gossip in ranks:
            comm = gossip._messenger.comm
            assert (comm.messages, comm.bytes) == tuple(3 * each for each in traffic(gossip))
            counted.add(traffic(gossip))
    ((messages, sent),) = counted
    (plain,) = {traffic(gossip) for gossip in everyone(2, shapes)}
    assert messages == plain[0] and part <= sent / plain[1] < 1.01 * part


@pytest.mark.parametrize("codec", CODECS)
def test_dtypes(codec):
    """Any floats; those that a codec would not make shorter travel as they are, and exactly."""
    dtypes = ["float32", "float16", "float64", "float32", "float16", "float64"]
    ranks = everyone(2, dtypes=dtypes, codec=codec)
    weights = [[one.astype(dtype) for one, dtype in zip(own, dtypes, strict=True)] for own in weights_of(2)]
    moves = meet(ranks, weights)
    for position, dtype in enumerate(dtypes):
        way, back = moves[0][position], moves[1][position]
        assert way.dtype == back.dtype == dtype
        np.testing.assert_array_equal(way, -back)
        exact = (weights[1][position] - weights[0][position]) / 2
        np.testing.assert_allclose(way, exact, atol=0.05)
        whole = codec == "bf16" and dtype == "float16"
        assert (ranks[0].reference[position] is None) == whole
        assert not whole or (way == exact).all()


def test_unknown():
    """By its name."""
    with pytest.raises(SettingError, match="no codec 'zip'"):
        everyone(2, codec="zip")


@pytest.mark.variants(1)
@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_on_real_ranks(bare_ranks, codec, feedback):
    """By MPI, by a thread that encodes and drives the messages: to the bit what virtual ranks end with."""
    shapes = [(300_000,), (3, 4), ()]
    values = bare_ranks(halfway.coded, (2, 3, 4), apart=PAIRS, shapes=shapes, codec=codec, feedback=feedback)
    for size, found in values.items():
        ranks, weights = everyone(size, shapes, codec=codec, feedback=feedback), weights_of(size, shapes)
        for gossip in ranks:
            gossip.refer(weights_of(1, shapes, seed=9)[0])
        for _ in range(5):
            for own, moves in zip(weights, meet(ranks, weights), strict=True):
                for array, move in zip(own, moves, strict=True):
                    array += move
        for rank, (nbytes, own) in enumerate(found):
            the_same([own, weights[rank]])
            assert nbytes == traffic(ranks[rank])[1] < (0.51 if codec == "bf16" else 0.26) * 4 * 300_012 + 100


@pytest.mark.variants(0)
@pytest.mark.parametrize(
    "options",
    [{"codec": "int8"}, {"codec": "bf16", "error_feedback": True}, {"codec": "int8", "gossip_sync": True}],
    ids=str,
)
def test_training(ranks, options):
    """Ranks part ways within an epoch, and are alike, to the bit, behind it; then that is what they refer to."""
    for values in ranks(gossip_cases.train, (3,), meets="merge", **options).values():
        the_same([value["weights"] for value in values])
        the_same([value["epochs"] for value in values])
        for value in values:
            the_same([value["references"], values[0]["references"]])
            np.testing.assert_array_equal(value["references"][0], value["start"])
            np.testing.assert_array_equal(value["references"][1:], value["epochs"][:-1])
        within = [value["batches"][2] for value in values]
        assert all(not np.array_equal(within[0], other) for other in within[1:])
        assert all(0 < spread < 0.5 for spread in values[0]["spreads"]), values[0]["spreads"]
        assert values[0]["history"]["accuracy"][-1] > 0.5


def test_several_fits(ranks):
    """Behind a fit and in `train_on_batch` as well all ranks are alike."""
    values = ranks(gossip_cases.goes_on, (3,), meets="", codec="int8", error_feedback=True)[3]
    assert all(value["logs"] == values[0]["logs"] for value in values)
    the_same([value["weights"] for value in values])


@pytest.mark.variants(0)
def test_real_data(ranks):
    """Four ranks learn to read digits about as well as without a codec, and stay about as close to one another."""
    chosen = {"none": {}, "bf16": {"codec": "bf16"}, "int8": {"codec": "int8", "error_feedback": True}}
    found = {name: ranks(gossip_cases.digits, (4,), meets="", **options)[4] for name, options in chosen.items()}
    for name, values in found.items():
        assert len(set(values)) == 1 and values[0][0] > 0.8, found
        assert abs(values[0][0] - found["none"][0][0]) < 0.03 and values[0][1] < 1.5 * found["none"][0][1], (
            name,
            found,
        )
