"""Groups event by event, beside the formulas that hold where all groups are equal."""

import pytest

from benchmarks.unequal_groups import Cluster, Simulation, efficiencies, together
from matex_tf.features.groups.local import LocalOptions
from matex_tf.planning.cost_model import Machine
from matex_tf.planning.step_cost import PlannedStep
from matex_tf.settings import Settings
from matex_tf.strategies import STRATEGIES


def planned(cluster, name, **options):
    """Seconds of a step by the formula of a strategy."""
    step = PlannedStep(
        cluster.compute, 0.0, cluster.nbytes, 1, cluster.groups, Machine(cluster.alpha, cluster.beta, 0.0)
    )
    return STRATEGIES[name](Settings().changed(strategy=name, **options)).predict(step).seconds


@pytest.mark.parametrize("groups", [4, 32])
@pytest.mark.parametrize("mbit", [10, 1000])
def test_equal_groups(groups, mbit):
    """Within a quarter, with no jitter: links that bind, and links that do not."""
    cluster = Cluster(groups, 0.1, 1e6, 0.01, 8e-6 / mbit, jitter=0.0, slow=0.0)
    elastic = groups / Simulation(cluster, 64, 4, overlap=True).run()
    assert elastic == pytest.approx(planned(cluster, "elastic", elastic_every=4), rel=0.25)
    server = groups / Simulation(cluster, 32, 1, overlap=False, staleness=4).run()
    assert server == pytest.approx(planned(cluster, "server"), rel=0.25)
    assert groups / together(cluster, 4, LocalOptions(local_every=1)) == pytest.approx(
        planned(cluster, "sync"), rel=0.05
    )


def test_a_slow_group_holds_nobody_up():
    """With elastic; with server all go as the slow one, once they are the staleness ahead."""
    equal, unequal = (Cluster(20, 0.1, 1e5, 0.001, 8e-9, jitter=0.0, slow=slow) for slow in (0.0, 0.05))
    fast = Simulation(equal, 64, 8, overlap=True).run()
    assert Simulation(unequal, 64, 8, overlap=True).run() == pytest.approx(fast * (1 - 0.05 * 2 / 3), rel=0.02)
    fast = Simulation(equal, 64, 1, overlap=False, staleness=2).run()
    assert Simulation(unequal, 64, 1, overlap=False, staleness=2).run() == pytest.approx(fast / 3, rel=0.15)


@pytest.mark.parametrize(("every", "overlap", "staleness"), [(8, True, None), (1, False, 4)])
def test_drawn_servers(every, overlap, staleness):
    """A meeting that draws a few servers, each of which stands for others, takes as long as one that asks all."""
    cluster = Cluster(60, 0.1, 5.2e6, 0.05, 8e-8)
    found = [Simulation(cluster, 24, every, overlap, staleness, exact=exact).run() for exact in (60, 1)]
    assert found[1] == pytest.approx(found[0], rel=0.15)


def test_parts_of_batches_hold_nobody_up():
    """They come over links of a latency longer than a step, and one server deals them all."""
    for groups, latency in ((4, 0.15), (2000, 0.05)):
        cluster = Cluster(groups, 0.1, 1e4, latency, 8e-9, jitter=0.0, slow=0.0)
        assert Simulation(cluster, 96, 32, overlap=True).run() > 0.9 * groups / 0.1


def test_who_is_ahead():
    """On slow links of high latency: elastic, then local, then what meets in each step."""
    found = efficiencies(Cluster(50, 0.1, 5.2e6, 0.05, 8e-8))
    assert found["elastic"] > found["local"] > max(found["server"], found["sync"])
