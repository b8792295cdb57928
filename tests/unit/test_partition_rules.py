"""Every rule of the partitioner is shown by trying it: an op on operands that three ranks hold in every way."""

import pytest

TABLES = ("CONTRACTIONS", "REDUCTIONS", "LAYOUT", "SLICES", "ROWWISE", "NORMALIZATION", "INDICES")
PARTS = 8
#: Rules that are tried in steps (tests/unit/test_partition_steps.py): they need variables.
IN_STEPS = {
    *("ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "Assert"),
    *("ResourceScatterAdd", "ResourceScatterSub"),
}
#: Modules whose rules are tried elsewhere: draws in tests/unit/test_partition_draws.py, to the bit.
ELSEWHERE = (".draws",)


@pytest.fixture(scope="module")
def support():
    """Imported when a test is run: nothing else imports TensorFlow where tests are collected."""
    from matex_tf.patches.partition import rules
    from tests.support import (
        partition_normalization,
        partition_rules,
        partition_table,
        partition_table_rows,
        partition_trials,
    )

    rules.load()
    modules = (partition_table, partition_table_rows, partition_normalization)
    tables = {name: getattr(one, name) for name in TABLES for one in modules if hasattr(one, name)}
    tables["elementwise"] = list(partition_trials.elementwise(list(elementwise_types(rules))))
    return rules, partition_rules, tables


def elementwise_types(rules):
    for name, functions in rules.RULES.items():
        if functions[0].__module__.endswith(".elementwise"):
            yield name


@pytest.mark.variants(len(TABLES) + 1)
@pytest.mark.parametrize("name", [*TABLES, "elementwise"])
@pytest.mark.parametrize("part", range(PARTS))
def test_rules(support, name, part):
    """What ranks give is what one rank gives, and rules hold where they are meant to."""
    _, trials, tables = support
    runs = [run for trial in tables[name][part::PARTS] for run in trials.runs(trial)]
    assert runs
    found = [line for at in range(0, len(runs), 60) for line in trials.failures(runs[at : at + 60])]
    assert not found, "\n".join(found)


def test_every_type_is_tried(support):
    """A rule without a trial is no rule."""
    rules, _, tables = support
    tried = {trial.type for table in tables.values() for trial in table}
    known = {name for name, made in rules.RULES.items() if not made[0].__module__.endswith(ELSEWHERE)}
    assert known - IN_STEPS == tried


def test_a_wrong_rule_is_found(support, monkeypatch):
    """The trials can fail: a sum over rows that is taken for a row's."""
    from matex_tf.patches.partition.labels import R
    from matex_tf.patches.partition.rules import RULES, Ruling

    _, trials, tables = support
    monkeypatch.setitem(RULES, "L2Loss", [lambda op: Ruling([None], [R])])
    runs = [run for trial in tables["REDUCTIONS"] if trial.type == "L2Loss" for run in trials.runs(trial)]
    assert trials.failures(runs)
