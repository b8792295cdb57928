"""The collectives of Horovod's names."""

import pytest

from tests.features.horovod.cases import horovod, horovod_names, horovod_sets

pytestmark = pytest.mark.variants(2)

#: What ranks that differ are told: the kind of error, and words of the message.
TOLD = {
    "shape": ("FailedPrecondition", ["float32 (3,)", "float32 (4,)"]),
    "dimensions": ("FailedPrecondition", ["(3,)", "(3, 1)"]),
    "dtype": ("FailedPrecondition", ["float32", "float64"]),
    "integer": ("FailedPrecondition", ["float32", "int32"]),
    "op": ("FailedPrecondition", ["average", "sum"]),
    "min": ("FailedPrecondition", ["min", "sum"]),
    "prescale": ("FailedPrecondition", ["prescale factor 2.0"]),
    "group": ("FailedPrecondition", ["2 or 3 items"]),
    "columns": ("FailedPrecondition", ["(3,)", "(4,)"]),
    "rows": ("FailedPrecondition", ["(3,)", "(4,)"]),
    "gathered dtype": ("FailedPrecondition", ["int32", "int64"]),
    "root": ("FailedPrecondition", ["from rank 0", "from rank 1"]),
    "kind": ("FailedPrecondition", ["hvd.broadcast x", "hvd.allreduce x"]),
    "name": ("FailedPrecondition", ["hvd.allreduce a", "hvd.allreduce b"]),
    "scattered": ("FailedPrecondition", ["(4,)", "(6,)"]),
    "sent columns": ("FailedPrecondition", ["(2,)", "(3,)"]),
    "splits": ("InvalidArgument", ["splits are [2, 2, 2]", "3 rows"]),
    "all splits": ("InvalidArgument", ["4 rows cannot be divided"]),
    "scalar": ("InvalidArgument", ["a scalar has no rows"]),
}


@pytest.mark.parametrize("how", ["eager", "graph"])
@pytest.mark.parametrize(
    "op", [horovod.allreduce, horovod.allgather, horovod.alltoall, horovod.reducescatter, horovod.gradients]
)
def test_op(ranks, op, how):
    """Every dtype and dimension, eagerly and in a tf.function."""
    right(ranks(op, meets="", graph=how == "graph"))


@pytest.mark.parametrize(
    "case",
    [horovod.scaled, horovod.grouped, horovod.broadcast, horovod.joins],
)
def test_more(ranks, case):
    """Factors, groups, roots, and ranks that run out of data."""
    right(ranks(case, meets=""))


@pytest.mark.parametrize(
    "case",
    [horovod.sets, horovod.adasum],
)
def test_on_four(ranks, case):
    """Process sets of two, and a power of two."""
    right(ranks(case, (4,), meets=""))


def right(values):
    """No entry of any rank is wrong."""
    for size, results in values.items():
        for rank, wrong in enumerate(results):
            assert wrong == {}, f"rank {rank} of {size}: {wrong}"


@pytest.mark.parametrize("how", list(TOLD))
def test_ranks_that_differ(ranks, how):
    """An error on every rank that says what differs, twice in a row, and the collective after each is right."""
    kind, words = TOLD[how]
    for told in ranks(horovod.differ, (3,), meets="", how=how)[3]:
        assert told[0].startswith(kind), told
        assert not [word for word in words if word not in told[1]], told


@pytest.mark.parametrize("graph", ["function", "session"])
@pytest.mark.parametrize("how", list(TOLD))
def test_ranks_that_differ_in_a_graph(ranks, how, graph):
    """The same error from a tf.function and from a session, in as few words."""
    kind, words = TOLD[how]
    for told in ranks(horovod.differ, (3,), meets="", how=how, graph=graph)[3]:
        assert told[0].startswith(kind), told
        assert not [word for word in words if word not in told[1]], told
        assert "Traceback" not in told[1], told


@pytest.mark.parametrize("how", ["eager", "session"])
@pytest.mark.parametrize(
    "case",
    [horovod_sets.ops, horovod_sets.gradients, horovod_sets.errors],
)
def test_process_sets(ranks, case, how):
    """Every op among the even ranks and among the odd ones at the same time."""
    right(ranks(case, (4,), meets="", session=how == "session"))


@pytest.mark.parametrize(
    "case",
    [horovod_sets.numbers, horovod_sets.training, horovod_sets.failures],
)
def test_sets_that_come_and_go(ranks, case):
    """Numbers of sets, and what optimizers and tapes do with a set."""
    right(ranks(case, (4,), meets=""))


def test_what_a_joined_rank_cannot_do(ranks):
    """The others are told, and all join in the end."""
    values = ranks(horovod.refused_after_join, (3,), meets="")[3]
    assert [bool("rank 0 has joined" in text) for text, _ in values] == [False, True, True], values
    assert {last for _, last in values} <= {1, 2}


def test_threads_in_any_order(ranks):
    """Collectives with names find one another."""
    assert ranks(horovod.from_threads, (3,), meets="") == {3: [True] * 3}


def test_session(ranks):
    """A graph of TensorFlow 1."""
    assert ranks(horovod.in_a_session, (1, 3), meets="") == {1: [[True] * 3], 3: [[True] * 3] * 3}


def test_session_of_many(ranks):
    """48 collectives at once, with two threads of TensorFlow."""
    assert ranks(horovod.many_in_a_session, (3,), meets="") == {3: [[True] * 2] * 3}


@pytest.mark.variants(1)
@pytest.mark.parametrize("how", ["session", "function", "eager"])
def test_backward_passes(ranks, how):
    """Several of each collective at once, and second derivatives: none gets the gradient of another."""
    right(ranks(horovod_names.backward_passes, (2,), meets="", how=how))


@pytest.mark.parametrize("v2", [True, False])
def test_control_flow(ranks, v2):
    """Loops and branches in a session's graph, as TensorFlow 2 makes them and as TensorFlow 1 did."""
    right(ranks(horovod_names.control_flow, (2,), meets="", v2=v2))


def test_names_and_scopes(ranks):
    """Names of collectives are unique in a graph, as names of ops are."""
    right(ranks(horovod_names.names_and_scopes, (3,), meets=""))


def test_functions_of_a_session(ranks):
    """A function that is called in several places: right, or an error that says so."""
    right(ranks(horovod_names.functions, (2,), meets=""))


def test_twice_at_a_time(ranks):
    """One rank has two collectives of one name in flight, which nobody can tell apart."""
    for told, after in ranks(horovod_names.twice_at_a_time, (3,), meets="")[3]:
        assert told[0] == "3.0" and told[1].startswith("InvalidArgumentError") and "of the name x at a time" in told[1]
        assert after == 3.0


def test_session_before_init(ranks):
    """It has threads for its collectives."""
    assert ranks(horovod_names.session_before_init, (3,), meets="") == {3: [True] * 3}


def test_who_we_are(ranks):
    """Ranks, sizes, what was built; clear words before init and for a name that is not there."""
    for size, values in ranks(horovod.who, meets="").items():
        for rank, (numbers, ops, built, absent, told) in enumerate(values):
            assert numbers == [rank, size, rank, size, 0, 1]
            assert ops == [rank, size, rank, size]
            assert all(built) and not any(absent)
            assert told[:3] == ["Horovod has not been initialized; use hvd.init()."] * 3
            assert "did you mean allreduce" in told[3]
