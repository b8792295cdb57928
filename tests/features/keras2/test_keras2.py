"""Keras 2, by tf_keras or as TensorFlow before 2.16 brings it: the answer of one rank."""

import numpy as np
import pytest
from compare import alike, same

from matex_tf.patches.common import keras_lines
from tests.support.cases import keras2

pytestmark = pytest.mark.skipif(not keras_lines.has_keras_2(), reason="needs tf_keras, which scripts/setup installs")

FITS = {
    "plain": {},
    "sample weights and validation": {"with_weights": True, "with_validation": True},
    "class weights": {"class_weight": ((0, 1.0), (1, 2.0), (2, 0.5))},
    "legacy, clipped": {"optimizer": ("legacy.SGD", {"learning_rate": 0.1, "momentum": 0.9, "global_clipnorm": 0.1})},
    "adam, clipped, averaged weights": {"optimizer": ("Adam", {"clipnorm": 0.1, "use_ema": True})},
    "a sum": {"loss": ("SparseCategoricalCrossentropy", {"from_logits": True, "reduction": "sum"}), "epochs": 1},
    "loss scaling": {"optimizer": ("", {"inner": ("Adam", {"global_clipnorm": 0.1}), "initial_scale": 1024})},
    "legacy loss scaling": {
        "optimizer": ("", {"inner": ("legacy.SGD", {"learning_rate": 0.1}), "initial_scale": 1024})
    },
    "two steps at once": {"steps_per_execution": 2},
    "eagerly": {"run_eagerly": True, "epochs": 1},
}


@pytest.mark.variants(3)
@pytest.mark.parametrize("options", FITS.values(), ids=FITS)
def test_fit(ranks, options):
    """Losses, metrics, weights and the state of optimizers, with a ragged last batch that has fewer rows than ranks."""
    same(ranks(keras2.fit, meets="exchange gradients", **options))


def test_on_batches(ranks):
    """`evaluate`, `predict` and the calls for one batch."""
    same(ranks(keras2.on_batches, meets="exchange gradients"))


@pytest.mark.variants(0)
@pytest.mark.parametrize("codec", ["int8", "bf16"])
def test_coded(ranks, codec):
    """Ranks of two hosts round what they send: they stay alike, and near the answer without a codec."""
    found = ranks(keras2.coded, (1, 2), codec=codec, meets="exchange gradients")
    alike(found)
    apart = [
        np.abs(one - other).max() for one, other in zip(found[1][0]["weights"], found[2][0]["weights"], strict=True)
    ]
    assert 1e-7 < max(apart) < 0.02, apart


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["tf.data", "generator", "Sequence"])
def test_sources(ranks, kind):
    """What is not an array: every rank makes every batch, and a line has the reason."""
    results = ranks(keras2.sources, kind=kind, meets="exchange gradients")
    for size, values in results.items():
        said = [value.pop("said") for value in values]
        assert size == 1 or all("Keras 2 gives every rank whole batches" in "".join(one) for one in said), said
    same(results)


@pytest.mark.variants(0)
def test_augmented(ranks):
    """`ImageDataGenerator`, from arrays and from files: a picture is changed as on one rank."""
    pytest.importorskip("PIL", reason="needs Pillow, as ImageDataGenerator does")
    same(ranks(keras2.augmented, meets="exchange gradients"))


@pytest.mark.variants(1)
@pytest.mark.parametrize("optimizer", ["of Keras", "of TensorFlow 1"])
def test_unbuilt_and_eager(ranks, optimizer):
    """The first step makes the variables, in a graph or eagerly; `tf.compat.v1.train` has optimizers too."""
    same(ranks(keras2.unbuilt_and_eager, optimizer=optimizer, meets="exchange gradients"))


@pytest.mark.variants(0)
def test_with_vocabulary(ranks):
    """The vocabulary of `TextVectorization` is no weight; a row behind `LayerNormalization` draws as on one rank."""
    same(ranks(keras2.with_vocabulary, meets="exchange gradients"))


@pytest.mark.variants(0)
@pytest.mark.parametrize("steps", [None, 8])
def test_order_of_batches(ranks, steps):
    """Batches that two workers make come in one order on all ranks, and a pass ends once."""
    found = ranks(keras2.order_of_batches, (2,), steps=steps, meets="compare the columns of the data")
    alike(found)
    seen, ended = found[2][0]["seen"], found[2][0]["ended"]
    passes = [seen[low : low + 4] for low in range(0, len(seen), 4)]
    assert len(passes) == ended == 3 * (steps or 4) / 4, found[2]
    assert all(sorted(one) == [0, 1, 2, 3] for one in passes), seen


@pytest.mark.variants(0)
def test_odd_batches(ranks):
    """Rows without an axis, then with one; variables of a metric are no weights, and differ between ranks."""
    same(ranks(keras2.odd_batches, meets="exchange gradients"))


def test_own_train_step(ranks):
    """AutoGraph is at work in the `call` of the model, and the logs of the step are those of all rows."""
    same(ranks(keras2.own_train_step, meets="exchange gradients"))


def test_own_loop(ranks):
    """Losses that a step returns, a metric, and weights."""
    same(ranks(keras2.own_loop, meets="exchange gradients"))


def test_batch_norm_and_dropout(ranks):
    """Statistics are over the rows of all ranks, and a row draws what it draws on one rank."""
    same(ranks(keras2.images, meets="exchange gradients"))


def test_callbacks(ranks):
    """They see logs of all rows and stop all ranks; files are written by one rank and read by all."""
    same(ranks(keras2.callbacks, meets="exchange gradients"))


def test_own_loss_and_metrics(ranks):
    """What looks across the rows of a batch sees those of all ranks, and a mask is that of all rows."""
    same(ranks(keras2.own_loss_and_metrics, meets="exchange gradients"))


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("loss", "given"),
    [("Hinge", ()), ("CosineSimilarity", (("axis", 0), ("reduction", "sum"))), ("CosineSimilarity", (("axis", -2),))],
    ids=["hinge", "sum by column", "mean by column"],
)
def test_over_rows(ranks, loss, given):
    """Losses and metrics of Keras 2 over an `axis` of rows, and labels that are binary on some ranks alone."""
    same(ranks(keras2.over_rows, meets="exchange gradients", loss=loss, given=given))


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["rows", "sum"])
def test_across_rows(ranks, kind):
    """A model that looks across rows, and a step that adds up over the batch."""
    same(ranks(keras2.across_rows, kind=kind, meets="exchange gradients"))


@pytest.mark.variants(0)
def test_virtual_batches(ranks):
    """Rows that are normalized five at a time, whoever has them, and a loss over an axis of rows in an own step."""
    same(ranks(keras2.virtual_batches, meets="exchange gradients"))


@pytest.mark.variants(0)
def test_told(ranks):
    """Without the partitioner a model that looks across rows is named, and so is a step that is not that of one rank;
    others are not."""
    line = {"rows": "looks across the rows", "sum": "its loss is a sum over the batch"}
    for kind in ("rows", "sum", "mean"):
        said = ranks(keras2.told, (2,), kind=kind)[2][0]
        assert [kind == other for other in line] == [any(one in text for text in said) for one in line.values()], said


@pytest.mark.variants(0)
@pytest.mark.parametrize("kind", ["arrays", "tf.data"])
def test_per_rank(ranks, kind):
    """`--batch per-rank` on two ranks is a batch of twice the size on one."""
    same(ranks(keras2.per_rank, (1, 2), kind=kind, meets="exchange gradients"))


@pytest.mark.variants(0)
@pytest.mark.parametrize("predict", [True, False])
def test_late(ranks, predict):
    """`--strategy pipe` applies the gradients of the step before, and what is under way at the end of an epoch."""
    random = np.random.RandomState(0)
    x, y = random.normal(size=(56, 3)), random.normal(size=(56, 1))
    weights = np.full((3, 1), 0.5)
    for _ in range(2):
        late = np.zeros((2, 3, 1))  # of each rank
        for low in range(0, 56, 8):
            parts = [slice(low, low + 4), slice(low + 4, low + 8)]
            there = [weights - 0.05 * late[rank] if predict else weights for rank in range(2)]
            gradients = [2 * x[part].T @ (x[part] @ at - y[part]) / 4 for part, at in zip(parts, there, strict=True)]
            weights, late = weights - 0.05 * late.mean(0), np.array(gradients)
        weights = weights - 0.05 * late.mean(0)
    for value in ranks(keras2.alone, (2,), strategy="pipe", pipe_predict=predict, meets="exchange gradients")[2]:
        np.testing.assert_allclose(value["end"], weights[:, 0], rtol=2e-4, atol=1e-6)
