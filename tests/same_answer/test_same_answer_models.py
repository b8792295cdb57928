"""Kinds of models: functional, subclassed, with steps, losses and metrics of their own."""

import numpy as np
import pytest
from compare import difference, rows_of_batch, same

from tests.support.cases import models
from tests.support.installed import KERAS

MODELS = [
    models.many_ends,
    models.subclassed,
    models.own_train_step,
    models.gan,
    models.penalties,
    models.clipped_in_the_step,
    models.assigned_in_the_step,
    models.attention,
    models.subclassed_eagerly,
    models.unbuilt_sequential,
    models.frozen,
    models.returned_numbers,
    models.twice,
    models.distillation,
    models.regularizers,
    models.added_loss,
    models.activity_regularizer,
    models.metric_function,
    models.own_metric,
]
LOSSES = {
    "own class, weighted": {"weighted": True},
    "sum": {"reduction": "sum"},
    "own class": {},
    "own function of rows": {"form": "rows"},
    "own function to a scalar": {"form": "scalar"},
    "sum, weighted": {"reduction": "sum", "weighted": True},
    "mean_with_sample_weight": {"reduction": "mean_with_sample_weight", "weighted": True},
}


@pytest.mark.variants(4)
@pytest.mark.parametrize("model", MODELS)
def test_model(ranks, model):
    """Trained on N ranks as on one."""
    same(ranks(model))


def test_logs_of_outputs_by_batch(ranks):
    """The mean of an output's loss over batches of several sizes, which Keras weights by rows in part."""
    same(ranks(models.many_ends, (1, 3), by_batch=True))


@pytest.mark.variants(1)
@pytest.mark.parametrize("options", [{"gradient_accumulation_steps": 2}, {"global_clipnorm": 0.05}])
def test_clipped_in_the_step(ranks, options):
    """With an optimizer that accumulates, or clips itself."""
    same(ranks(models.clipped_in_the_step, (1, 3), **options))


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    ("kind", "how", "rows", "row"),
    [
        ("sequential", "fit", 80, "(40, 3)"),
        ("sequential", "fit", 90, "(None, 3)" if KERAS < (3, 16) else "(40, 3)"),
        ("masked", "pipeline", 90, "(40, 3)"),
        ("subclassed", "fit", 80, "(40, 4)"),
        ("sequential", "predict", 90, "(40, 3)"),
        ("sequential", "evaluate", 80, "(40, 3)"),
        ("sequential", "train_on_batch", 90, "(90, 3)"),
        ("subclassed", "predict", 90, "(40, 4)"),
    ],
)
def test_summary_of_a_model_that_its_first_step_builds(ranks, kind, how, rows, row):
    """`summary()` and what is saved of a model show the shapes of one rank; its weights are those of one rank."""
    meets = "gather" if how == "predict" else "compare"
    shown = same(ranks(models.shown, kind=kind, how=how, rows=rows, meets=meets))
    assert row in "".join(shown["summary"])


@pytest.mark.variants(0)
@pytest.mark.parametrize("model", [models.own_train_step, models.gan])
def test_model_on_more(ranks, model):
    """The same for the other sizes."""
    same(ranks(model, (1, 2, 4)))


@pytest.mark.variants(2)
@pytest.mark.parametrize("loss", LOSSES)
def test_loss(ranks, loss):
    """Losses of the user's own, and every reduction."""
    if loss == "mean_with_sample_weight" and KERAS < (3, 9):
        pytest.skip("this Keras does not have the reduction")
    same(ranks(models.losses, **LOSSES[loss]))


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("optimizer", "config", "rtol"),
    [("SGD", {"learning_rate": 0.5, "momentum": 0.9}, 1e-5), ("Adam", {"learning_rate": 0.05}, 1e-3),
     ("SGD", {"learning_rate": 0.5, "global_clipnorm": 0.05}, 1e-5)],
    ids=["SGD", "Adam", "clipped"],
)  # fmt: skip
def test_embeddings(ranks, optimizer, config, rtol):
    """Sparse gradients: rows that several ranks hold, rows that none does."""
    sizes = (1, 3, 4) if optimizer == "Adam" else (1, 3)
    same(ranks(models.embeddings, sizes, optimizer=optimizer, **config), rtol=rtol)


@pytest.mark.variants(0)
@pytest.mark.parametrize(("layer", "sequences"), [("LSTM", False), ("SimpleRNN", True)])
def test_recurrent(ranks, layer, sequences):
    """Recurrent models with masked steps; a masked loss divides by the valid steps of the whole batch."""
    same(ranks(models.recurrent, layer=layer, sequences=sequences))


@pytest.mark.smoke
def test_fixed_batch_size(ranks):
    """A model whose input has a number of rows: a rank's part of them has fewer."""
    same(ranks(models.fixed_batch))


def test_metric_that_cannot_be_added(ranks):
    """It gets the rows of all ranks, and nothing is warned of."""
    assert same(ranks(models.maximum_metric))["warnings"] == []


@pytest.mark.variants(0)
@pytest.mark.smoke
def test_synchronized_batch_normalization(ranks):
    """`synchronized=True` gives what the plain layer gives on one rank, a batch with fewer rows than ranks included."""
    same(ranks(models.normalized, synchronized=True), rtol=1e-4)


@pytest.mark.variants(0)
def test_synchronized_batch_normalization_of_images(ranks):
    """The same over the axes of images."""
    same(ranks(models.normalized_images), rtol=1e-4)


@pytest.mark.smoke
def test_dropout(ranks):
    """A repeated run draws the same; the ranks' masks are the parts of that of one rank, and so is what they learn."""
    results = ranks(models.dropout, (1, 3))
    for values in results.values():
        for first, second in values:
            assert not list(difference(first, second, 0.0, 0.0))
            assert set(np.unique(first["mask"])) == {0.0, 2.0}
            assert not np.array_equal(first["mask"], first["second"])
        for batch in ("mask", "second"):
            whole = rows_of_batch([first[batch] for first, _ in values], 24)
            assert np.array_equal(whole, results[1][0][0][batch])
    same({size: [[run["weights"], run["history"]] for run, _ in values] for size, values in results.items()})


@pytest.mark.variants(1)
@pytest.mark.parametrize("how", ["seed", "lazy", "set", "between"])
def test_initial_weights(ranks, how):
    """Ranks with other weights raise an error that names the layer, at every `fit`."""
    for message in ranks.refused(models.initial_weights, (2,), error="RanksDisagree", how=how)[2]:
        assert "dense" in message and "before the first step" in message
