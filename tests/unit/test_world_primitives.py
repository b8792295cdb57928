"""The collectives of `world`, on real ranks."""

from concurrent import futures

import pytest
from compare import alike

from matex_tf.core import world
from tests.support.cases import primitives

SIZES = (1, 2, 3, 4)


def test_meet(bare_ranks):
    """Ranks that agree go on."""
    assert bare_ranks(primitives.meet, SIZES, meets="") == {size: [True] * size for size in SIZES}


@pytest.mark.parametrize(
    ("how", "words"),
    [("purpose", ["different ways", "evaluate", "train"]), ("item", ["b (5,)", "b (4,)"]), ("count", ["1 or 2 items"])],
)
def test_disagreement(bare_ranks, how, words):
    """Every rank raises, and is told who does what."""
    for size, messages in bare_ranks.refused(primitives.disagree, (2, 4), error="RanksDisagree", how=how).items():
        assert len(set(messages)) == 1
        for word in [*words, f"rank {size - 1}", "rank 0" if size == 2 else "ranks 0-2"]:
            assert word in messages[0]


def test_after_a_disagreement(bare_ranks):
    """Nothing is left over in the communicator."""
    result = bare_ranks(primitives.meet_again, (2, 3), meets="")
    assert result[3] == [(3, [0.0, 6.0, 12.0])] * 3


@pytest.mark.parametrize("case", [primitives.sums, primitives.gathered_rows])
def test_arrays(bare_ranks, case):
    """Sums and joined rows of many dtypes and shapes are what numpy makes of all ranks' arrays."""
    for values in bare_ranks(case, SIZES, meets="").values():
        for value in values:
            assert value and all(value.values()), [key for key, right in value.items() if not right]


def test_rows_with_other_columns(bare_ranks):
    """They are not joined."""
    bare_ranks.refused(primitives.gathered_columns_differ, (3,), error="RanksDisagree")


def test_share_and_gather(bare_ranks):
    """A root's value everywhere, and everyone's values in order."""
    results = bare_ranks(primitives.shared, SIZES, meets="")
    alike(results)
    for size, values in results.items():
        from_root, arrays, shape, scalar, gathered = values[0]
        assert from_root and all(arrays.values()) and shape == () and scalar == 0.0
        assert gathered == [("rank", rank) for rank in range(size)]


def test_scatter(bare_ranks):
    """Each rank gets its own of the root's values."""
    for size, values in bare_ranks(primitives.scattered, SIZES, meets="").items():
        assert values == [(f"for rank {rank}".encode(), "mine") for rank in range(size)]


def test_subsets(bare_ranks):
    """A subset has its own order and its own current world; the rest is as before."""
    for size, values in bare_ranks(primitives.subsets, (2, 3, 4), meets="").items():
        for rank, seen in enumerate(values):
            order = list(range(size))[::-1]
            place = size - 1 - rank
            assert seen == [place, size, order, rank == 0, (place, size, True), size, True, True]


def test_alone(bare_ranks):
    """One rank without MPI answers every call by itself."""
    expected = (True, 0, 1, [0.0, 1.0, 2.0], True, 5, ["x"], [0.0, 1.0, 2.0], True)
    assert bare_ranks(primitives.alone, (1,)) == {1: [expected]}


def test_alone_is_of_one_thread():
    """A thread that traces a step as one rank does has a world of its own; the threads beside it have the job's."""
    job = world.World()
    with world.use(job), world.alone() as one:
        assert world.current() is one and one.is_single and world.of_job() is job
        with futures.ThreadPoolExecutor() as pool:
            assert pool.submit(world.current).result() is job
        with world.alone():
            assert world.current() is not one
        assert world.current() is one
    assert getattr(world._of_thread, "world", None) is None
