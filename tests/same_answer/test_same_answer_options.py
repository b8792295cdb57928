"""Options of `fit` and the other methods of a model: the same on every rank as on one."""

import pytest
from compare import same

from tests.support.cases import options as options_cases
from tests.support.installed import KERAS

OPTIONS = {
    "shuffle on": {"shuffle": True, "lazily": True},
    "validation_split": {"validation_split": 0.21},
    "sample_weight": {"with_weights": True, "compile_options": {"weighted_metrics": ["accuracy"]}},
    "steps_per_execution": {"compile_options": {"steps_per_execution": 3}, "with_validation": True, "lazily": True},
    "run_eagerly": {"compile_options": {"run_eagerly": True}, "epochs": 1, "lazily": True},
    "shuffle off": {"shuffle": False},
    "validation_data": {"with_validation": True, "validation_batch_size": 9},
    "validation_freq": {"with_validation": True, "validation_freq": 2, "validation_steps": 1},
    "class_weight": {"class_weight": ((0, 1.0), (1, 0.2), (2, 3.0))},
    "initial_epoch": {"initial_epoch": 1},
    "steps_per_epoch": {"steps_per_epoch": 2},
    "jit_compile": {"compile_options": {"jit_compile": True}, "lazily": True},
    "no jit_compile": {"compile_options": {"jit_compile": False}},
    "one batch": {"batch_size": 101},
}


@pytest.mark.variants(4)
@pytest.mark.parametrize("name", OPTIONS)
def test_fit(ranks, name):
    """Each option means on N ranks what it means on one."""
    options = dict(OPTIONS[name])
    old = KERAS < (3, 4) and name in ("steps_per_execution", "steps_per_epoch")
    if old:  # `evaluate` fails on one rank where an execution has fewer batches than it takes
        options.pop("with_validation", None)
    results = ranks(options_cases.fit, **options)
    if old:  # one rank counts steps for which there was no batch: compare all but `optimizer.iterations`
        for value in (value for values in results.values() for value in values):
            value["optimizer"].pop(0)
    reference = same(results)
    assert reference["history"]["loss"]


def test_jit_compile_auto_and_off_are_one_answer(ranks):
    """Whether the one rank compiles with XLA is no reason for a difference that the tolerance hides."""
    automatic = ranks(options_cases.fit, (1,), shuffle=False)
    plain = ranks(options_cases.fit, (1,), shuffle=False, compile_options={"jit_compile": False})
    same({1: automatic[1] + plain[1]})


@pytest.mark.smoke
def test_train_on_batch(ranks):
    """A loop over `train_on_batch`; the numbers that it returns are those of the whole batch, on every rank."""
    same(ranks(options_cases.train_on_batches))


@pytest.mark.smoke
def test_evaluate_and_predict(ranks):
    """`evaluate` and `predict` share the rows out and return the whole answer everywhere, in order."""
    reference = same(ranks(options_cases.evaluate_and_predict, meets="merge metrics"))
    assert reference["predict"].shape == (101, 3)
    assert reference["some steps"].shape == (75, 3)


def test_predict_structures(ranks):
    """Predictions of nested structure and of several axes are joined leaf by leaf."""
    named, listed = same(ranks(options_cases.predict_structures, meets="predict"))
    assert named["image"].shape == (53, 2, 3, 2)
    assert listed[1].shape == (53, 3, 4)


@pytest.mark.variants(1)
@pytest.mark.parametrize("case", [options_cases.two_fits, options_cases.two_models, options_cases.called_outside])
def test_scripts(ranks, case):
    """More than one `fit` in a script, and a model that is called outside of `fit`."""
    same(ranks(case))


def test_own_loop(ranks):
    """A loop that never calls Keras' `fit` feeds every rank all rows, and ends as on one rank."""
    same(ranks(options_cases.own_loop, meets=""))


def test_predict_ragged(ranks):
    """Predictions whose rows differ in length come back whole and in order; the last batch has one row."""
    reference = same(ranks(options_cases.predict_ragged, meets="gather predictions"))
    assert reference["shape"] == [101, None] and len({len(row) for row in reference["rows"]}) > 1


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_bar_of_whole_batches(ranks, kind):
    """With --batch per-rank it counts the steps that a rank makes, and no line says that batches are shared out."""
    for printed, steps in ranks(options_cases.bar_of_whole_batches, (3,), kind=kind)[3]:
        assert steps == 2 * 4 and printed.count("4/4") >= 2 and "/11" not in printed, printed
    said = ranks.last[3][0].output
    assert "its part of each batch" not in said and "rows of each batch" not in said
    if kind == "arrays":
        assert "matex_tf: each of 3 ranks has the same 101 rows, and takes one of every 3 batches" in said


def test_a_script_that_is_ended(ranks):
    """`--steps` ends it on every rank after the same step; rank 0 says so."""
    outcomes = ranks.outcomes(options_cases.ended_after, (2,), steps=3)[2]
    assert [outcome.value for outcome in outcomes] == [(0, 3), (0, 3)]
    assert "training steps (--steps)" in outcomes[0].output and "--steps" not in outcomes[1].output
