"""Training loops of the script's own on N ranks: weights, and what is read from metrics, as on one."""

import numpy as np
import pytest
from compare import alike, same

from tests.support.cases import loops

GUIDES = {
    "eager": {},
    "compiled": {"compiled": True},
    "adam": {"compiled": True, "optimizer": "adam"},
    "apply_gradients": {"apply": "apply_gradients"},
    "clipped by the optimizer": {"compiled": True, "optimizer": "clipped"},
    "clipped by the script": {"clip": True},
    "accumulating": {"compiled": True, "optimizer": "accumulating"},
    "loss scaling": {"compiled": True, "optimizer": "scaled"},
    "a last batch with fewer rows than ranks": {"rows": 51},
    "the same, compiled": {"rows": 51, "compiled": True},
}


def test_an_epoch_that_was_left_in_the_middle(ranks):
    """The next walk has all rows once, however far each rank had read ahead."""
    for said in ranks(loops.left_in_the_middle, (1, 3), meets="exchange gradients and sums").values():
        assert [value for values in said for value in values] == len(said) * [19.5, 19.5, 780, 780]


FORMS = [
    "enumerate",
    "steps_of",
    "next",
    "numpy",
    "dict",
    "prefetched",
    "break",
    "zip",
    "nested",
    "whole",
    "iterator",
    "step_of",
    "padded",
    "arrays",
]


pytestmark = pytest.mark.variants(1)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.smoke
def test_guide(ranks, guide):
    """The loop of Keras' guide."""
    same(ranks(loops.guide, **GUIDES[guide]), rtol=1e-4 if "adam" in guide else 1e-5)


def test_in_float64(ranks):
    """Ranks weigh what they add up in as many bits."""
    same(ranks(loops.in_float64, (1, 3)), rtol=1e-13, atol=1e-14)


@pytest.mark.variants(0)
def test_guide_on_more(ranks):
    """The same for the other sizes."""
    same(ranks(loops.guide, (1, 2, 4), compiled=True, rows=51))


@pytest.mark.variants(2)
@pytest.mark.parametrize("form", FORMS)
def test_form(ranks, form):
    """Forms of loops, the last batch with one row alone."""
    same(ranks(loops.forms, form=form))


@pytest.mark.parametrize("compiled", [False, True])
def test_without_optimizer(ranks, compiled):
    """`w.assign_sub(rate * gradient)`; a loss that the script averages by name."""
    same(ranks(loops.without_optimizer, compiled=compiled))


@pytest.mark.variants(0)
def test_average(ranks):
    """`matex_tf.average`, for gradients of `tf.gradients`."""
    same(ranks(loops.without_optimizer, how="gradients"))


@pytest.mark.parametrize("compiled", [False, True])
def test_gan(ranks, compiled):
    """Two optimizers in one step."""
    same(ranks(loops.gan, compiled=compiled))


def test_penalty(ranks):
    """A tape inside of a tape."""
    same(ranks(loops.penalty), rtol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["sum", "none", "masked", "weighted"])
def test_loss(ranks, kind, compiled):
    """Losses of Keras that are no plain mean over rows."""
    same(ranks(loops.losses, kind=kind, compiled=compiled), rtol=1e-4)


@pytest.mark.variants(0)
def test_normalization(ranks):
    """Over all rows, whether the layer says that it is synchronized or not; several models in one loop."""
    same(ranks(loops.normalized), rtol=1e-4)


def test_dropout(ranks):
    """The ranks' masks are the parts of that of one rank; so is what they learn."""
    results = ranks(loops.dropout, (1, 2, 3))
    same({size: [value["weights"] for value in values] for size, values in results.items()})
    for values in results.values():
        joined = [np.concatenate(masks) for masks in zip(*(value["masks"] for value in values), strict=True)]
        assert np.array_equal(joined, results[1][0]["masks"])


def test_rows(ranks):
    """A loop that trains is shared out from its second batch on; one that looks on is not, and both are exact."""
    training = ranks(loops.sees, (1, 2), form="training")
    assert training[2][0]["seen"] == [16, 8, 4, 8, 8, 4]
    same({size: [{"w": value["w"]} for value in values] for size, values in training.items()})
    for form in ("looking", "unbatched", "generator"):
        same(ranks(loops.sees, (1, 2), form=form, apart="such loops are not shared out"))


def test_files(ranks):
    """Checkpoints, saved models and summaries are written once, and hold what one rank would have written."""
    reference = same(ranks(loops.files, (1, 3)))
    assert reference["logs"] == 1 and reference["drafts"] == []
    kept, saved = ["kept/ckpt-2.index", "kept/ckpt-3.index"], ["saved/variables/variables.index"]
    assert reference["found"] == [*kept, *saved, "single/one-4.index", "single/two.index"]
    for outcome in ranks.last[3]:
        assert [what for what in outcome.calls if what.startswith("write ") and what.endswith("/saved")], outcome.calls


@pytest.mark.parametrize("how", ["arrays", "stream", "next_train_batch"])
def test_own_data(ranks, how):
    """Rows of the rank's own: a pipeline over its arrays, a `DataSet`; together they are the batches of one rank."""
    same(ranks(loops.own_data, (1, 3), how=how))


def test_sharded_by_the_script(ranks):
    """`dataset.shard`: batches of other rows than on one rank, all used, and all ranks alike."""
    alike(ranks(loops.own_data, (3,), how="shard"))


def test_off(ranks):
    """`--shard-loops off`: each rank's batches are its own; gradients are averaged, metrics merged."""
    same(ranks(loops.off, (1, 3)))


def test_beside_fit(ranks):
    """A loop before and after `fit`; what a callback iterates over is left whole."""
    same(ranks(loops.beside_fit))


def test_own_metric(ranks):
    """A metric that cannot be added up gets the rows of all ranks."""
    same(ranks(loops.own_metric))


def test_variables_that_are_gone(ranks):
    """Variables are compared with themselves, not with others of the same name."""
    outcomes = ranks.outcomes(loops.gone, (3,))[3]
    assert not any(outcome.error for outcome in outcomes), outcomes[0].traceback
    assert "differs from rank 0" not in outcomes[0].output


def test_drift(ranks):
    """Weights that part ways are named when a checkpoint is written, also where a rank still holds older variables."""
    outcomes = ranks.outcomes(loops.drift, (3,))[3]
    assert not any(outcome.error for outcome in outcomes), outcomes[0].traceback
    assert "on rank 1 differs from rank 0" in outcomes[0].output
