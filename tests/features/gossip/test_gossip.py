"""Gossip: weights that travel while the next step computes, and rows that go round."""

import numpy as np
import pytest
from compare import alike
from there import needs_keras_2
from virtual import VirtualMessenger

from matex_tf.core.waiting import StallDetector
from matex_tf.errors import MatexError, RanksDisagree
from matex_tf.exchange.network import messenger
from matex_tf.features.gossip.pairwise_average import PairwiseAverager
from matex_tf.features.gossip.topology import Partners
from tests.features.gossip.cases import gossip as gossip_cases
from tests.features.gossip.cases import halfway
from tests.features.gossip.cases.halfway import start, traffic
from tests.features.gossip.cases.halfway import weights_of as weights_of_shapes
from tests.support.cases import keras2

PAIRS = "pairs of ranks exchange weights, and all of them meet nowhere"
SHAPES = [(3, 4), (4,), (), (300,), (0, 5), (7, 2)]


def everyone(size, shapes=SHAPES, dtypes=None, limit=1 << 20, kind="dissemination", **coded):
    """A `PairwiseAverager` for each of `size` ranks in this process."""
    shared = {}
    dtypes = [np.dtype(dtype) for dtype in dtypes or ["float32"] * len(shapes)]
    return [
        PairwiseAverager(
            VirtualMessenger(rank, size, shared), rank, Partners(size, 3, kind), shapes, dtypes, limit, **coded
        )
        for rank in range(size)
    ]


def weights_of(size, shapes=SHAPES, seed=0):
    return weights_of_shapes(size, shapes, seed)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize(("limit", "piece"), [(1 << 20, 1 << 20), (1 << 20, 64), (256, 128)])
def test_a_turn_is_the_average_of_two(size, limit, piece, monkeypatch):
    """What a rank ends with is the mean of its weights and its source's, plus what it did while they travelled."""
    monkeypatch.setattr(messenger, "PIECE", piece)
    ranks, weights = everyone(size, limit=limit), weights_of(size)
    for turn in range(5):
        before = [[array.copy() for array in own] for own in weights]
        for gossip, own in zip(ranks, weights, strict=True):
            start(gossip, own)
        work = weights_of(size, seed=turn + 1)
        for gossip, own, step in zip(ranks, weights, work, strict=True):
            for array, more in zip(own, step, strict=True):
                array += more
            gossip.finish()
            for array, move in zip(own, gossip.moves, strict=True):
                array += move
        partners = Partners(size, 3)
        for rank, own in enumerate(weights):
            _, source = partners.of(turn, rank)
            for array, mine, theirs, more in zip(own, before[rank], before[source], work[rank], strict=True):
                np.testing.assert_allclose(array, (mine + theirs) / 2 + more, rtol=1e-5, atol=1e-6)
        for mean, old, more in zip(*(zip(*part, strict=True) for part in (weights, before, work)), strict=True):
            np.testing.assert_allclose(sum(mean), sum(old) + sum(more), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["dissemination", "hypercube"])
def test_weights_come_together(kind):
    """Where nobody trains, one round of a hypercube makes all weights equal; dissemination brings them near."""
    size = 8
    ranks, weights = everyone(size, kind=kind), weights_of(size)
    mean = [sum(arrays) / size for arrays in zip(*weights, strict=True)]
    for _ in range(3 if kind == "hypercube" else 9):
        for gossip, own in zip(ranks, weights, strict=True):
            start(gossip, own)
        for gossip, own in zip(ranks, weights, strict=True):
            gossip.finish()
            for array, move in zip(own, gossip.moves, strict=True):
                array += move
    for own in weights:
        for array, middle in zip(own, mean, strict=True):
            np.testing.assert_allclose(array, middle, atol=1e-5)


@pytest.mark.parametrize(("limit", "piece", "each"), [(1 << 20, 1 << 20, 3), (1024, 1 << 20, 5), (1 << 20, 512, 5)])
def test_messages_do_not_depend_on_the_number_of_ranks(limit, piece, each, monkeypatch):
    """Counted where they are sent: the same messages and bytes a rank and step, whatever p."""
    monkeypatch.setattr(messenger, "PIECE", piece)
    counted = set()
    for size in (2, 3, 4, 6, 8, 16):
        ranks, weights = everyone(size, limit=limit), weights_of(size)
        for _ in range(7):
            for gossip, own in zip(ranks, weights, strict=True):
                start(gossip, own)
            for gossip in ranks:
                gossip.finish()
        for gossip in ranks:
            comm = gossip._messenger.comm
            assert (comm.messages, comm.bytes) == tuple(7 * each for each in traffic(gossip))
            counted.add((comm.messages, comm.bytes))
    assert len(counted) == 1
    ((messages, sent),) = counted
    floats = 4 * sum(int(np.prod(shape)) for shape in SHAPES)
    assert messages == 7 * each and 7 * floats < sent < 7 * (floats + 16 + 64 * len(SHAPES))


def test_dtypes():
    """Each bucket has one dtype; short floats meet halfway as well."""
    dtypes = ["float32", "float16", "float64", "float32", "float16", "float64"]
    ranks = everyone(2, dtypes=dtypes)
    arrays = [
        [np.full(shape, 3 * rank + 1, dtype) for shape, dtype in zip(SHAPES, dtypes, strict=True)] for rank in (0, 1)
    ]
    for gossip, own in zip(ranks, arrays, strict=True):
        start(gossip, own)
    for gossip, way in zip(ranks, (1.5, -1.5), strict=True):
        gossip.finish()
        for move, dtype in zip(gossip.moves, dtypes, strict=True):
            assert move.dtype == dtype and (move == way).all()


def test_infinite_weights_travel():
    """A rank that has diverged does not stop the others' messages; its numbers arrive as they are."""
    ranks = everyone(2, [(2,)])
    for gossip, value in zip(ranks, (1.0, np.inf), strict=True):
        start(gossip, [np.array([value, 0], np.float32)])
    for gossip in ranks:
        gossip.finish()
    assert ranks[0].moves[0].tolist() == [np.inf, 0] and ranks[1].moves[0].tolist() == [-np.inf, 0]


def test_a_rank_that_stops_early():
    """The one that waits for it is told so, and so is the one that has stopped."""
    ranks, weights = everyone(2), weights_of(2)
    for gossip, own in zip(ranks, weights, strict=True):
        start(gossip, own)
    for gossip in ranks:
        gossip.finish()
    start(ranks[0], weights[0])
    ranks[1]._greet(1)
    with pytest.raises(RanksDisagree, match="rank 1 after 1 exchanges has stopped training; rank 0 after 1 .* goes on"):
        ranks[0].finish()
    with pytest.raises(RanksDisagree, match="rank 0 after 1 exchanges goes on"):
        ranks[1]._hear(1, 1)


def test_stalls():
    """A line once for each wait that is too long, and an end where one is asked for."""
    said = []
    stalls = StallDetector(10, 100, said.append)
    for seconds in (1, 9, 10, 11, 1, 12):
        stalls.check([3], seconds, "gossip")
    assert len(said) == 2 and all("rank 3 missing since" in line for line in said)
    with pytest.raises(MatexError, match="one of ranks 1, 3 missing .*--stall-abort-seconds"):
        stalls.check([1, 3], 101, "gossip")
    StallDetector(0, 0, said.append).check([3], 1e6, "gossip")
    assert len(said) == 3


@pytest.mark.variants(2)
@pytest.mark.parametrize(("limit", "at_once"), [(1 << 20, False), (1 << 20, True), (1 << 16, False), (1 << 16, True)])
def test_on_real_ranks(bare_ranks, limit, at_once):
    """The same by MPI, by a thread that drives the messages; also where a turn begins before the last has ended."""
    for values in bare_ranks(halfway.meet, (2, 3, 4), apart=PAIRS, limit=limit, at_once=at_once).values():
        assert values == [True] * len(values)


def test_weights_travel_by_themselves(bare_ranks):
    """While a rank does something else; for one that is late the others wait, and say so."""
    values = bare_ranks(halfway.travels, (3,), meets="")[3]
    assert all(waited[0] < 0.5 for waited, _ in values)
    assert values[1][0][1] > 1 and any("one of ranks 0, 2 missing since" in line for line in values[1][1])


def test_a_rank_that_stops_before_the_others(bare_ranks):
    """Its partner says so, and nobody hangs."""
    outcomes = bare_ranks.outcomes(halfway.stops, (3,))[3]
    said = [outcome.error for outcome in outcomes if "RanksDisagree" in outcome.kinds]
    assert said and all("gone different ways" in text for text in said), outcomes


def the_same(values):
    for value in values[1:]:
        for one, other in zip(value, values[0], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.variants(1)
@pytest.mark.parametrize("options", [{}, {"gossip_sync": True}, {"gossip_every": 2}, {"bucket_mb": 1}], ids=str)
def test_training(ranks, options):
    """Ranks part ways within an epoch, and are alike, to the bit, behind each epoch's end and when fit returns."""
    for size, values in ranks(gossip_cases.train, (2, 3), meets="merge", **options).items():
        the_same([value["weights"] for value in values])
        the_same([value["epochs"] for value in values])
        assert all(value["history"] == values[0]["history"] for value in values)
        assert all(value["evaluate"] == values[0]["evaluate"] for value in values)
        within = [value["batches"][2] for value in values]
        assert all(not np.array_equal(within[0], other) for other in within[1:])
        assert all(0 < spread < 0.5 for spread in values[0]["spreads"]), values[0]["spreads"]
        assert any(not np.array_equal(*pair) for pair in zip(*(value["slots"] for value in values[:2]), strict=True))
        assert values[0]["history"]["accuracy"][-1] > 0.5, size


@pytest.mark.variants(1)
@pytest.mark.parametrize("options", [{}, {"gossip_sync": True}, {"gossip_every": 3}], ids=str)
def test_against_a_simulation(ranks, options):
    """Linear regression by SGD: what each rank holds after each step is what numpy makes of the paper's formulas."""
    for size, values in ranks(gossip_cases.linear, (2, 3), meets="average weights", **options).items():
        expected = simulate(size, rows=53, batch=8, epochs=2, **options)
        for value, steps in zip(values, expected, strict=True):
            np.testing.assert_allclose(value, steps, rtol=2e-4, atol=1e-6)


def simulate(size, rows, batch, epochs, gossip_sync=False, gossip_every=1):
    """The weights of each rank after each step."""
    random = np.random.RandomState(0)
    x, y = random.normal(size=(rows, 3)), random.normal(size=(rows, 1))
    weights = [np.full((3, 1), 0.5) for _ in range(size)]
    sent, turn, step = None, 0, 0
    partners, seen = Partners(size, 1), [[] for _ in range(size)]

    def take_in():
        nonlocal sent
        if sent is not None:
            for rank in range(size):
                weights[rank] += (sent[partners.of(turn - 1, rank)[1]] - sent[rank]) / 2
        sent = None

    for _ in range(epochs):
        for low in range(0, rows, batch):
            total = min(batch, rows - low)
            step += 1
            for rank in range(size):
                own = slice(low + rank * total // size, low + (rank + 1) * total // size)
                error = x[own] @ weights[rank] - y[own]
                weights[rank] -= 0.05 * 2 * x[own].T @ error / len(error)
            if step % gossip_every == 0:
                if not gossip_sync:
                    take_in()
                sent, turn = [own.copy() for own in weights], turn + 1
                if gossip_sync:
                    take_in()
            for rank in range(size):
                seen[rank].append(weights[rank][:, 0].copy())
        take_in()
        weights = [sum(weights) / size for _ in range(size)]
    return np.array(seen)


@pytest.mark.variants(1)
def test_statistics_travel_and_frozen_weights_stay(ranks):
    """Moving means and variances gossip with the weights; frozen kernels and random states do not."""
    values = ranks(gossip_cases.train, (3,), meets="merge", kind="statistics")[3]
    the_same([value["weights"] for value in values])
    names = [path.rpartition("/")[2] for path in values[0]["travelled"]]
    assert sorted(names) == ["beta", "bias", "gamma", "kernel", "moving_mean", "moving_variance"]


@pytest.mark.variants(0)
@pytest.mark.parametrize(
    "options",
    [{"gradient_accumulation_steps": 3}, {"use_ema": True}, {"clipnorm": 0.1, "weight_decay": 0.01}],
    ids=str,
)
def test_optimizers(ranks, options):
    """What an optimizer keeps is the rank's own, and all end alike."""
    values = ranks(gossip_cases.train, (3,), meets="merge", optimizer=options)[3]
    the_same([value["weights"] for value in values])
    assert values[0]["history"]["loss"][-1] < values[0]["history"]["loss"][0]


@pytest.mark.variants(1)
@pytest.mark.parametrize("case", [gossip_cases.goes_on, gossip_cases.two_optimizers, gossip_cases.own_loop])
def test_scripts(ranks, case):
    """Several fits, `train_on_batch`, layers that are shared, two optimizers; a loop of the script's own is as ever."""
    values = ranks(case, (3,), meets="")[3]
    if case is gossip_cases.goes_on:
        assert all(value["logs"] == values[0]["logs"] for value in values)
        assert all(value["evaluated"] == values[0]["evaluated"] for value in values)
        values = [value["weights"] for value in values]
    the_same(values)


RINGS = {
    "shards": {},
    "whole arrays": {"shard": False, "ring_shuffle": "on"},
    "uneven": {"uneven": True},
    "few rows": {"rows": 11, "batch": 4, "epochs": 6},
    "no shuffle": {"fit": {"shuffle": False}},
    "steps of an epoch": {"fit": {"steps_per_epoch": 7}, "epochs": 5},
}


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", RINGS)
def test_ring(ranks, name):
    """Over a whole run each row is on one rank, is used once an epoch, moves on, and no rank holds more than before."""
    options = RINGS[name]
    for values in ranks(gossip_cases.ring, (2, 3), meets="", **options).values():
        rows = options.get("rows", 101)
        for held in zip(*(value["held"] for value in values), strict=True):
            assert sorted(sum(held, [])) == list(range(rows))
        if "steps" not in name:
            for epoch in zip(*(value["trained"] for value in values), strict=True):
                used = sum((sum(steps, []) for steps in epoch), [])
                assert sorted(used) == list(range(rows))
        assert all(len(value["memory"]) == 1 for value in values)
        for value in values:
            stayed = set(value["held"][0]) & set(value["held"][1])
            assert name == "uneven" or len(stayed) <= 0.5 * len(value["held"][0]), stayed


@pytest.mark.variants(0)
def test_ring_off(ranks):
    """Arrays that every rank holds are dealt out anew in each epoch; shards stay where they are where one asks."""
    for value in ranks(gossip_cases.ring, (3,), meets="", shard=False)[3]:
        assert value["held"] == []
    for value in ranks(gossip_cases.ring, (3,), meets="", ring_shuffle="off")[3]:
        assert value["held"] == [] and len({tuple(sorted(sum(epoch, []))) for epoch in value["trained"]}) == 1


@pytest.mark.variants(0)
def test_real_data(ranks):
    """Four ranks learn to read digits by gossip about as well as in sync."""
    gossip, sync = (ranks(gossip_cases.digits, (4,), meets="", name=name)[4] for name in ("gossip", "sync"))
    assert len(set(gossip)) == len(set(sync)) == 1
    assert gossip[0][0] > 0.8 and abs(gossip[0][0] - sync[0][0]) < 0.03, (gossip, sync)


@pytest.mark.variants(0)
def test_training_on_shards(ranks):
    """Weights and rows travel at the same time."""
    the_same([value["weights"] for value in ranks(gossip_cases.train, (3,), meets="merge", shard=True)[3]])


def test_a_rank_that_leaves(ranks):
    """It is told apart from one that is slow: an error in words, and no hang."""
    outcomes = ranks.outcomes(gossip_cases.leaves_early, (3,))[3]
    said = [outcome.error for outcome in outcomes if "RanksDisagree" in outcome.kinds]
    assert said and all("have gone different ways" in text for text in said), outcomes


@pytest.mark.parametrize(
    ("chosen", "ranks", "word"),
    [
        ({"faults": "restart"}, 4, "--faults shrink"),
        ({"gossip_topology": "hypercube"}, 6, "dissemination"),
    ],
)
def test_refused(chosen, ranks, word):
    """What does not go together is said before the script starts."""
    from matex_tf.errors import SettingError
    from matex_tf.settings import Settings

    with pytest.raises(SettingError, match=word):
        Settings().changed(strategy="gossip", **chosen).refuse_conflicts(ranks)
    possible = {"gossip_topology": "hypercube", "codec": "int8", "error_feedback": True, "faults": "shrink"}
    Settings().changed(strategy="gossip", **possible).refuse_conflicts(8)
    Settings().changed(**{**chosen, "strategy": "sync"}).refuse_conflicts(ranks)


@pytest.mark.variants(0)
@needs_keras_2()
def test_keras_2(ranks):
    """The ranks end alike, and have learned."""
    found = ranks(keras2.alone, (2,), strategy="gossip", meets="average weights")
    alike(found)
    assert found[2][0]["losses"][1] < found[2][0]["losses"][0]
