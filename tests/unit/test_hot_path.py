"""What small models cannot afford in each step."""

from tests.support.cases import hot_path


def test_a_step_runs_one_graph(ranks):
    """One op fetches the batch, and the rest is one call of the step's graph: an op by hand is dear in a small step."""
    for size, found in ranks(hot_path.eager_ops, (2,)).items():
        assert found == [[1.0, 1.0]] * size


def test_threads_spin_where_there_are_cores_for_them(ranks):
    """Not where a rank has one core: they would take it from the ranks that compute."""
    for size, found in ranks(hot_path.threads, (2,), apart="they look at themselves").items():
        assert [spin for _, spin in found] == [threads > 1 for threads, _ in found]
        assert len(found) == size
