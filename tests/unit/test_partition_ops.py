"""No op in a step of Keras is computed whole by every rank, but where `partition_ops.WHOLE` says why."""

import pytest

#: The first is run by default; all of them with --all. `scripts/ops` prints the table, with the layers.
KINDS = ("activations", "losses", "metrics", "optimizers")


@pytest.fixture(scope="module")
def support():
    """Imported when a test is run: nothing else imports TensorFlow where tests are collected."""
    from tests.support import partition_ops

    return partition_ops


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_computed_whole(support, kind):
    """Each public name of Keras, in a step with its gradient."""
    names, whole = [], {}
    for name, plan in support.KINDS[kind]():
        names.append(name)
        if plan.computed_whole and name not in support.WHOLE:
            whole[name] = support.whole_types(plan)
    assert len(names) > 10
    assert not whole
