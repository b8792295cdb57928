"""Local SGD with an outer step: what each rank holds after each step is what numpy makes of the paper's formulas."""

import numpy as np
import pytest
from compare import alike, same
from there import needs_keras_2

from matex_tf.errors import SettingError
from matex_tf.features.groups.local import deal
from matex_tf.settings import Settings
from tests.features.groups.cases import local
from tests.support.cases import keras2

OUTER = "take an outer step"


def simulate(size, every, rate, momentum, rows=56, batch=8, epochs=2):
    """The weights of each rank after each step, and of all at the end."""
    random = np.random.RandomState(0)
    x, y = random.normal(size=(rows, 3)), random.normal(size=(rows, 1))
    anchor, kept = np.full((3, 1), 0.5), np.zeros((3, 1))
    weights, seen, steps = [anchor.copy() for _ in range(size)], [[] for _ in range(size)], 0
    for _ in range(epochs):
        for low in range(0, rows, batch):
            for rank, held in enumerate(weights):
                own = slice(low + rank * batch // size, low + (rank + 1) * batch // size)
                error = x[own] @ held - y[own]
                held -= 0.05 * 2 * x[own].T @ error / len(error)
            steps += 1
            full, last = steps == every, low + batch == rows
            alone = [held[:, 0].copy() for held in weights]
            if full or last:
                moved, steps = sum(anchor - held for held in weights) / size, 0
                kept = momentum * kept + moved
                anchor = anchor - rate * (moved + momentum * kept)
                for held in weights:
                    held[:] = anchor
            for rank, held in enumerate(weights):  # a round that ends early does so at the end of the epoch
                seen[rank].append(held[:, 0].copy() if full else alone[rank])
    return np.array(seen), anchor[:, 0]


@pytest.mark.variants(2)
@pytest.mark.parametrize(("every", "rate", "momentum"), [(3, 0.7, 0.9), (2, 1.0, 0.0), (1, 0.7, 0.9), (100, 1.0, 0.5)])
def test_equals_numpy(ranks, every, rate, momentum):
    """Seven steps an epoch, of which the last ones are a shorter round."""
    given = {"local_every": every, "outer_learning_rate": rate, "outer_momentum": momentum}
    for size, values in ranks(local.linear, (2, 3), meets=OUTER, **given).items():
        seen, end = simulate(size, every, rate, momentum)
        for value, steps in zip(values, seen, strict=True):
            np.testing.assert_allclose(value["end"], end, rtol=2e-4, atol=1e-6)
            np.testing.assert_allclose(value["batches"], steps, rtol=2e-4, atol=1e-6)
        rounds = 2 * -(-7 // every)
        for outcome in ranks.last[size]:  # once more where ranks compare for the first time what they are about to do
            assert outcome.calls[OUTER] in (rounds, rounds + 1), outcome.calls
            assert not any("gradients" in what for what in outcome.calls), (size, outcome.output)


def stream(size, every, rate, momentum, fragments, overlap, mix, rows=56, batch=8, epochs=2):
    """The same for two layers, which may be parts of their own, and with meetings whose outer step comes later."""
    random = np.random.RandomState(0)
    x, y = random.normal(size=(rows, 3)), random.normal(size=(rows, 1))
    parts = [slice(0, 6), slice(6, 8)] if fragments == 2 else [slice(0, 8)]
    weights, seen = [np.full(8, 0.5) for _ in range(size)], [[] for _ in range(size)]
    anchor, kept, sent, steps = np.full(8, 0.5), np.zeros(8), [None, None], 0

    def outer(part, moved):
        kept[part] = momentum * kept[part] + moved
        anchor[part] -= rate * (moved + momentum * kept[part])

    def moves(part):
        return sum(anchor[part] - held[part] for held in weights) / size

    def receive(place, part):
        if sent[place] is not None:
            outer(part, sent[place])
            sent[place] = None
            for held in weights:
                held[part] = mix * held[part] + (1 - mix) * anchor[part]

    def meet(part):
        outer(part, moves(part))
        for held in weights:
            held[part] = anchor[part]

    for _ in range(epochs):
        for low in range(0, rows, batch):
            for rank, held in enumerate(weights):
                own = slice(low + rank * batch // size, low + (rank + 1) * batch // size)
                first, second = held[:6].reshape(3, 2), held[6:].reshape(2, 1)
                error = 2 * (x[own] @ first @ second - y[own]) / len(x[own])
                gradients = x[own].T @ error @ second.T, (x[own] @ first).T @ error
                held -= 0.05 * np.concatenate([one.reshape(-1) for one in gradients])
            steps += 1
            for place, part in enumerate(parts):
                at = steps + place * every // len(parts)
                if overlap and (at - overlap) % every == 0:
                    receive(place, part)
                if at % every == 0:
                    if overlap:
                        sent[place] = moves(part)
                    else:
                        meet(part)
            for rank, held in enumerate(weights):
                seen[rank].append(held.copy())
            if low + batch == rows:
                for place, part in enumerate(parts):
                    receive(place, part)
                    meet(part)
                steps = 0
    return np.array(seen), anchor


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    ("every", "fragments", "overlap", "mix"),
    [(4, 2, 1, 0.5), (3, 2, 0, 0.5), (3, 1, 2, 0.0), (4, 2, 3, 1.0), (2, 1, 1, 0.25)],
)
def test_streams(ranks, every, fragments, overlap, mix):
    """Streaming DiLoCo: layers that meet in turn, and outer steps that come some steps later."""
    given = {"local_every": every, "local_fragments": fragments, "local_overlap": overlap, "local_mix": mix}
    given |= {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
    for size, values in ranks(local.deep, (2,), meets=OUTER, **given).items():
        seen, end = stream(size, every, 0.7, 0.9, fragments, overlap, mix)
        for value, steps in zip(values, seen, strict=True):
            np.testing.assert_allclose(value["end"], end, rtol=2e-4, atol=1e-6)
            np.testing.assert_allclose(value["batches"], steps, rtol=2e-4, atol=1e-6)


def test_parts():
    """Layers are dealt out whole and in turn, and no part is empty."""
    names = ["a/kernel", "a/bias", "b/kernel", "c/kernel", "d/inner/kernel", "d/inner/bias"]
    assert deal(names, 2, str) == [["a/kernel", "a/bias", "c/kernel"], ["b/kernel", "d/inner/kernel", "d/inner/bias"]]
    assert deal(names, 9, str) == [names[:2], names[2:3], names[3:4], names[4:]]
    assert deal([], 2, str) == [[]]


def test_plain_is_sync(ranks):
    """A meeting in each step without an outer rate and momentum gives the answer of one rank."""
    same(ranks(local.plain))


@pytest.mark.variants(1)
@pytest.mark.parametrize(("codec", "step"), [("bf16", 1 / 128), ("int8", 1 / 254), ("int4", 1 / 14)])
def test_outer_gradients_are_encoded(ranks, codec, step):
    """Between hosts what ranks have moved is rounded, to the bit alike on all of them, by no more than the codec says
    for each of three rounds on its way round three ranks."""
    found = ranks(local.coded, (3,), meets=OUTER, codec=codec)[3]
    assert len({bits for _, bits in found}) == 1
    for off, _ in found:
        assert 1e-5 < off < 3 * step


@pytest.mark.variants(0)
def test_goes_on(ranks):
    """Fits, weights that are set, single batches: ranks end alike, to the bit, and learn."""
    found = ranks(local.goes_on, (3,), meets=OUTER)
    alike(found, rtol=0, atol=0)
    for losses in (found[3][0]["losses"], found[3][0]["again"]):
        assert losses[-1] < 0.8 * losses[0], losses


def test_refused():
    """Settings that mean nothing."""
    for given, word in (
        ({"outer_momentum": "1"}, "below 1"),
        ({"outer_learning_rate": "0"}, "above 0"),
        ({"faults": "restart"}, "--faults shrink"),
        ({"local_every": "4", "local_overlap": "4"}, "fewer steps of overlap"),
        ({"local_overlap": "2", "faults": "shrink"}, "--local-overlap 0"),
        ({"local_mix": "2"}, "from 0 to 1"),
    ):
        with pytest.raises(SettingError, match=word):
            Settings.read({"strategy": "local", **given}, {})


@pytest.fixture(scope="module")
def short_job_of_sync(any_ranks):
    """The accuracy that the job has with sync."""
    (found,) = {one["accuracy"] for one in any_ranks(local.short_job, (2,), strategy="sync", epochs=12)[2]}
    return found


@pytest.mark.parametrize("form", ["local", "pipe"])
def test_a_short_job_keeps_up(ranks, short_job_of_sync, form):
    """With the defaults a job of few rounds ends as with sync, and no line says that it falls behind."""
    given = {"local_every": 8, "groups": "2"} if form == "local" else {"strategy": "pipe"}
    meets = OUTER if form == "local" else "exchange gradients"
    (accuracy,) = {one["accuracy"] for one in ranks(local.short_job, (2,), meets=meets, epochs=12, **given)[2]}
    assert "is the cause" not in ranks.last[2][0].output
    assert accuracy > short_job_of_sync - 0.03, accuracy  # one training; scripts/bench accuracy has means


@pytest.mark.parametrize("form", ["outer step", "pipe"])
def test_says_that_it_falls_behind(ranks, form):
    """A line names the strategy that lets the loss grow, and what to do: an outer step that goes too far, old gradients
    at a large rate with momentum."""
    outer = {"local_every": 8, "outer_learning_rate": 0.7, "outer_momentum": 0.9}
    published = {"strategy": "pipe", "pipe_predict": False}
    ranks(local.short_job, (2,), meets="merge metrics", **(outer if form == "outer step" else published))
    wanted = "--outer-momentum 0" if form == "outer step" else "less momentum"
    said = [line for line in ranks.last[2][0].output.splitlines() if "is the cause" in line]
    assert len(said) == 1 and wanted in said[0], said


@pytest.mark.variants(0)
@needs_keras_2()
def test_keras_2(ranks):
    """It gives what its formulas give."""
    outer = {"local_every": 3, "outer_learning_rate": 0.7, "outer_momentum": 0.9}
    _, end = simulate(2, 3, 0.7, 0.9)
    for value in ranks(keras2.alone, (2,), strategy="local", meets=OUTER, **outer)[2]:
        np.testing.assert_allclose(value["end"], end, rtol=2e-4, atol=1e-6)
