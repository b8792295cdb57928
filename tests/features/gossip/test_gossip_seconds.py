"""The formula for a step of gossip, against a simulation of its messages; see tests/unit/test_timing.py."""

import pytest
from events import Post, Receive, Send, Simulation, Work
from hypothesis import given, settings
from hypothesis import strategies as st

from matex_tf.features.gossip import strategy as gossip
from matex_tf.features.gossip.topology import Partners
from matex_tf.planning import cost_model
from matex_tf.planning.cost_model import Machine

GIGABIT = Machine(alpha=50e-6, beta=8e-9, gamma=0.4e-9)
TIMES = st.floats(1e-3, 1.0)


@settings(deadline=None, max_examples=15)
@given(
    ranks=st.integers(2, 12), compute=TIMES, nbytes=st.floats(1e3, 1e8), every=st.integers(1, 3),
    asynchronous=st.booleans(),
)  # fmt: skip
def test_gossip(ranks, compute, nbytes, every, asynchronous):
    """Ranks with the partners that they really have, whatever their number."""
    partners, average, steps = Partners(ranks, 3), nbytes * GIGABIT.gamma, 60

    def process(rank):
        under_way = []
        for step in range(steps):
            yield [Work(compute)]
            if step % every:
                continue
            if under_way:
                yield under_way
                yield [Work(average)]
            to, source = partners.of(step // every, rank)
            under_way = [Send(to, nbytes, step), Receive(source, step)]
            if asynchronous:
                yield Post(under_way)
            else:
                yield under_way
                yield [Work(average)]
                under_way = []

    simulation = Simulation(ranks, GIGABIT.alpha, GIGABIT.beta)
    for rank in range(ranks):
        simulation.start(rank, process(rank))
    expected = simulation.run() / steps
    sent = cost_model.message(nbytes, GIGABIT)
    assert gossip.step_seconds(compute, 0, sent, average, every, asynchronous) == pytest.approx(expected, rel=0.05)
