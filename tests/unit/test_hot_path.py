"""What small models cannot afford in each step."""

from tests.support.cases import hot_path


def test_a_step_runs_one_graph(ranks):
    """One op fetches the batch, and the rest is one call of the step's graph: an op by hand is dear in a small step."""
    for size, found in ranks(hot_path.eager_ops, (2,)).items():
        assert found == [[1.0, 1.0]] * size
