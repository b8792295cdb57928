"""Whose rows data hold: every row is used once an epoch, by random pipelines as by parts that each rank has."""

import pytest

from tests.support.cases import guesses

#: Kinds of pipelines, and the line that says what was found; "" where nothing differs that could be seen.
SHARED = {
    "augmented": "x (float32, rows of shape (6,)) differs between ranks, and each batch is split",
    "masked words": "y (int32, rows of shape ()) differs between ranks, and each batch is split",
    "order": ", y (int32, rows of shape ()) differs between ranks, and each batch is split",
    "every second": "differs between ranks, and each batch is split",
    "generator": "since labels do not differ",
    "files": "since only what random ops have touched differs",
}
#: Kinds that `fit`, `evaluate` and `predict` divide: every rank draws for all rows, and what was drawn is not compared.
DRAWN = {"augmented", "masked words", "every second"}
OWN = {
    "shard": "their pipelines are made of other rows",
    "uneven": "their pipelines are made of other rows",
    "filtered": "their pipelines are made of other rows",
    "floats by hand": "their pipelines are made of other rows",
    "looked up": "their pipelines are made of other rows",
    "generator of shards": "since y (int32, rows of shape ()) differs",
    "parts of files": "since no random op has touched y (float32",
}


def used(ranks, kind, how, **options):
    """What rank 0 says; each epoch must have used each row once."""
    outcomes = ranks.outcomes(guesses.rows_used, (2,), kind=kind, how=how, **options)[2]
    assert not any(outcome.error for outcome in outcomes), outcomes[0].error + outcomes[0].traceback
    for outcome in outcomes:
        if how == "predict":
            assert outcome.value == (24 if kind in SHARED else 12)
        elif how == "on_batch":
            assert sum(outcome.value) == 24
        else:
            assert outcome.value == [24.0] * len(outcome.value)
    return outcomes[0].output


@pytest.mark.variants(6)
@pytest.mark.parametrize("kind", [*SHARED, *OWN])
def test_fit(ranks, kind):
    """A pipeline in `fit`."""
    said = "each rank runs 1 map of the tf.data pipeline for its rows" if kind in DRAWN else {**SHARED, **OWN}[kind]
    assert said in used(ranks, kind, "fit")


@pytest.mark.variants(8)
@pytest.mark.parametrize("kind", [*SHARED, *OWN])
def test_loop(ranks, kind):
    """The same in a loop of the script's own."""
    assert {**SHARED, **OWN}[kind] in used(ranks, kind, "loop")


def test_loop_with_numbers(ranks):
    """Beside the parts of a batch that differ there is a number, which has no rows."""
    assert SHARED["augmented"].replace("x (", "y[0] (") in used(ranks, "augmented", "numbered")


@pytest.mark.parametrize("kind", ["augmented", "shard"])
def test_loop_in_a_function(ranks, kind):
    """A loop inside a tf.function goes by what its pipeline is made of."""
    used(ranks, kind, "function")


@pytest.mark.parametrize("how", ["evaluate", "predict"])
@pytest.mark.parametrize("kind", ["augmented", "shard", "generator of shards"])
def test_without_training(ranks, kind, how):
    """`evaluate` and `predict`."""
    said = used(ranks, kind, how)
    assert kind in DRAWN or {**SHARED, **OWN}[kind] in said


@pytest.mark.parametrize("kind", ["augmented", "generator of shards"])
def test_on_batch(ranks, kind):
    """`train_on_batch` with arrays that the script has made."""
    assert "train_on_batch" in used(ranks, kind, "on_batch")


def test_said_by_the_user(ranks):
    """`--rows own` and `--rows shared` end all guessing."""
    outcomes = ranks.outcomes(guesses.rows_used, (2,), kind="generator", how="fit", rows="own")[2]
    assert [outcome.value for outcome in outcomes] == [[48.0, 48.0]] * 2
    outcomes = ranks.outcomes(guesses.rows_used, (2,), kind="shard", how="loop", rows="shared")[2]
    assert outcomes[0].value[-1] == 12.0


def test_rounded(ranks):
    """Arrays that differ by rounding are the same."""
    assert ranks(guesses.rounded, (2,))[2] == [[24.0]] * 2
