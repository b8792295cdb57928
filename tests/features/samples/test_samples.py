"""`--prune-samples`: the same rows are left out on any number of ranks, and the same weights come of it."""

import numpy as np
import pytest
from compare import same

from tests.features.dynamics.cases import dynamics
from tests.features.samples.cases import samples

FORMS = [
    {"form": "split", "rule": "schedule"},
    {"form": "weights"},
    {"form": "class_weight"},
    {"form": "in order"},
    {"form": "tf.data"},
    {"form": "PyDataset"},
    {"form": "workers"},
    {"form": "batches"},
    {"model": "own step"},
    {"model": "two outputs"},
    {"model": "layers"},
    {"model": "xla"},
    {"model": "eager"},
    {"rule": "accumulation"},
    {"rule": "scaled"},
    {"by": "el2n"},
    {"by": "forgetting"},
    {"by": "uncertainty"},
    {"by": "random"},
    {"prune_samples_rescale": False},
    {"reproducible": 4},
    {"more": {"steps_per_epoch": None, "validation_freq": 2}},
]


def named(how):
    return " ".join(map(str, how.values()))


@pytest.mark.variants(1)
@pytest.mark.parametrize("how", FORMS, ids=named)
def test_same_rows(ranks, how):
    """Weights, `History`, scores, and how often each row was used."""
    result = same(ranks(samples.trained, (1, 4), **how))
    rows = len(result["count"])
    assert result["used"][0] == result["used"][-1] == rows and max(result["used"][1:-1]) < rows
    assert sum(result["used"]) == result["count"].sum() and np.isfinite(result["scores"]).all()


@pytest.mark.parametrize("rate", [0.5])
def test_equals_numpy(ranks, rate):
    """Which rows, with which gradients, and the loss in the logs: InfoBatch in NumPy."""
    for found, expected in ranks(samples.linear, (2,), rate=rate)[2]:
        assert found["used"] == expected["used"] and len(set(found["used"])) > 2
        np.testing.assert_allclose(found["weights"], expected["weights"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-4)


def test_shards(ranks):
    """Rows of all ranks are numbered in the order of ranks; each is used or left out by the rank that has it."""
    first, *others = ranks(samples.sharded, (2,))[2]
    assert len(first["count"]) == 60 + 80 and sum(first["count"]) == sum(first["used"])
    assert first["used"][0] == first["used"][-1] == 140 > max(first["used"][1:-1])
    assert all(other["used"] == first["used"] for other in others)
    np.testing.assert_array_equal(first["weights"][0], others[0]["weights"][0])


def test_dataset(ranks):
    """Parts of a file that `DataSet` has given the ranks are shards."""
    first, *others = ranks(samples.from_file, (2,))[2]
    assert first["own"] + others[0]["own"] == len(first["count"]) == 101 and first["own"] < 101
    assert first["used"][0] == first["used"][-1] == 101 > max(first["used"][1:-1])
    assert sum(first["count"]) == sum(first["used"]) and others[0]["used"] == first["used"]
    np.testing.assert_array_equal(first["weights"][0], others[0]["weights"][0])


def test_callbacks_and_progress(ranks):
    """Callbacks and the progress bar are told the steps that an epoch has; a schedule by the epoch sees each epoch."""
    for found in ranks(samples.heard, (1, 2))[2]:
        steps = [-(-rows // 20) for rows in found["used"]]
        assert len(set(steps)) > 1
        assert [told for told, _, _ in found["heard"]] == [seen for _, seen, _ in found["heard"]] == steps
        np.testing.assert_allclose([rate for *_, rate in found["heard"]], 0.05 / np.arange(1, 7), rtol=1e-5)
        if found["printed"]:
            for count, rows in zip(steps, found["used"], strict=True):
                assert f"{count}/{count}" in found["printed"] and f"rows_used: {rows}" in found["printed"]


def test_schedule_by_step(ranks):
    """A schedule of the optimizer sees the place that the training would have with all rows: each epoch begins where
    it would, and the schedule ends with the training, in fewer updates."""
    for found in ranks(samples.heard, (1, 2), by_step=True)[2]:
        steps = [-(-rows // 20) for rows in found["used"]]
        assert found["updates"] == sum(steps) < 6 * 11
        places = np.arange(7) * 11 / (6 * 11)
        rates = [rate for *_, rate in found["heard"]] + [found["rate"]]
        np.testing.assert_allclose(rates, 0.1 * (1 + np.cos(np.pi * places)), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("shards", [False, True], ids=["whole", "shards"])
def test_picture(ranks, shards):
    """The hardest and the easiest images, each with the number of its row, from whichever rank has it."""
    first, second = ranks(samples.pictured, (2,), shards=shards)[2]
    assert not second["shown"] and first["files"] == second["files"] == ["scores.csv", "scores.png"]
    assert [len(rows) for rows in first["shown"]] == [10, 10] and all(first["right"])
    assert first["drawn"] == sorted(first["shown"][0] + first["shown"][1])
    assert not shards or min(first["drawn"]) < 30 <= max(first["drawn"])


@pytest.mark.variants(1)
@pytest.mark.parametrize("strategy", ["gossip", "pipe", "local"])
def test_strategies(ranks, strategy):
    """Ranks that train apart leave out the same rows; with `pipe` they have the same weights."""
    first, *others = ranks(samples.trained, (2,), strategy=strategy, meets="")[2]
    assert first["used"][0] == first["used"][-1] > max(first["used"][1:-1])
    for other in others:
        np.testing.assert_array_equal(other["count"], first["count"])
        assert other["used"] == first["used"]
        for one, own in zip(first["weights"], other["weights"], strict=True):
            assert strategy != "pipe" or (one == own).all()


@pytest.mark.variants(0)
@pytest.mark.parametrize("change", [{}, {"apoptosis": False, "grow": True, "grow_to": 0.6}], ids=["apoptosis", "grow"])
def test_networks_that_change(ranks, change):
    """Neurons go, or come, while rows are left out: the same on one rank and on two."""
    result = same(ranks(dynamics.changed, (1, 2), prune_samples=0.6, epochs=5, **change), rtol=1e-3, atol=1e-4)
    used = result["history"]["rows_used"]
    assert used[0] == used[-1] == 1021 > max(used[1:-1])
    if change:
        assert result["shapes"][0] == (10, 24)  # of 40; it began with 10
    else:
        assert result["after"] < 0.9 * result["before"]


@pytest.mark.variants(0)
def test_per_rank(ranks):
    """With `--batch per-rank` too, a batch is full, and every row that is used is used once."""
    for result in ranks(samples.trained, (2,), batch="per-rank")[2]:
        assert sum(result["used"]) == result["count"].sum() and result["used"][1] < result["used"][0]


@pytest.mark.variants(0)
def test_codec(ranks):
    """Gradients that are rounded between two hosts: ranks stay alike and leave out the same rows."""
    plain, coded = (
        ranks(samples.trained, (2,), model="codec", hosts="ab", codec=codec, meets="")[2] for codec in ("none", "int8")
    )
    for name in ("used", "count", "weights"):
        for one, other in zip(coded[0][name], coded[1][name], strict=True):
            np.testing.assert_array_equal(one, other)
    assert any((one != other).any() for one, other in zip(plain[0]["weights"], coded[0]["weights"], strict=True))
    assert coded[0]["used"][0] > max(coded[0]["used"][1:-1])
    np.testing.assert_allclose(coded[0]["used"], plain[0]["used"], atol=0.1 * plain[0]["used"][0])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("mean", "mean_of_batch has no value for each row"),
        ("steps", "leave out steps_per_epoch"),
        ("generator", "nobody can say which row is which"),
        ("step", "let it call self.compute_loss"),
        ("measure", "needs a crossentropy of classes"),
    ],
)
@pytest.mark.variants(1)
def test_refused(ranks, what, message):
    """In words, on every rank."""
    for said in ranks.refused(samples.refused, (2,), what=what)[2]:
        assert message in said, said
