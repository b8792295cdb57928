"""The formulas, against a simulation that runs the algorithms of the network message by message."""

import dataclasses
import heapq

import numpy as np
import pytest
from events import Meter, Post, Receive, Send, Simulation, TimedLane, Work, timed
from hypothesis import given, settings
from hypothesis import strategies as st

from matex_tf.exchange.network import algorithms, compressed_ring
from matex_tf.planning import cost_model, step_cost
from matex_tf.planning.cost_model import CodecCost, Cost, Machine
from matex_tf.strategies import pipe

GIGABIT = Machine(alpha=50e-6, beta=8e-9, gamma=0.4e-9)
CODEC = CodecCost(ratio=0.26, encode=0.8e-9, decode=0.5e-9, add=0.7e-9)
ELEMENTS = 960  # of an array that stands for more; divisible by many numbers of ranks
MACHINES = st.builds(
    Machine,
    alpha=st.floats(0, 1e-3),
    beta=st.floats(1e-11, 1e-7),
    gamma=st.floats(1e-11, 1e-8),
)


class PricedCodec:
    """Does nothing, at the price of a codec."""

    name = "priced"

    def __init__(self, cost, meter, scale):
        self._cost, self._meter, self._scale = cost, meter, scale

    def nbytes(self, count):
        return round(4 * count * self._cost.ratio)

    def _pay(self, values, seconds):
        self._meter.add(values.nbytes * self._scale * seconds)

    def encode(self, values, wire, residual=None):
        self._pay(values, self._cost.encode)

    def decode(self, wire, values):
        self._pay(values, self._cost.decode)

    def add(self, wire, total):
        self._pay(total, self._cost.add)


def simulated(algorithm, nodes, nbytes, machine, codec=None):
    """Seconds of an allreduce of the network, message by message; and of work on each rank."""
    simulation, scale = Simulation(nodes, machine.alpha, machine.beta), nbytes / (4 * ELEMENTS)
    meters = []
    before = algorithms.add
    try:
        for rank in range(nodes):
            for tag, piece in enumerate(np.array_split(np.zeros(ELEMENTS, np.float32), machine.pieces)):
                meter = Meter()
                meters.append(meter)
                make = compressed_ring.CompressedRing(PricedCodec(codec, meter, scale)) if codec else algorithm
                steps = make(TimedLane(rank, nodes, scale), piece, tag)
                simulation.start(rank, timed(_with_add(steps, meter, machine.gamma * scale), meter))
        return simulation.run()
    finally:
        algorithms.add = before


def _with_add(steps, meter, seconds):
    """While these steps run, adding is work of theirs."""
    while True:
        algorithms.add = lambda total, part: meter.add(part.nbytes * seconds)
        try:
            waits = next(steps)
        except StopIteration:
            return
        yield waits


@settings(deadline=None, max_examples=25)
@given(nodes=st.integers(1, 17), nbytes=st.floats(1e3, 1e8), machine=MACHINES)
@pytest.mark.parametrize("name", ["doubling", "rabenseifner"])
def test_doubling_and_halving(name, nodes, nbytes, machine):
    """As their messages and additions add up, also where the number of nodes is no power of two."""
    expected = simulated(getattr(algorithms, name), nodes, nbytes, machine)
    assert getattr(cost_model, name)(nodes, nbytes, machine).seconds == pytest.approx(expected, rel=0.01)


@settings(deadline=None, max_examples=25)
@given(
    nodes=st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 16]), nbytes=st.floats(1e3, 1e8), machine=MACHINES,
    with_codec=st.booleans(),
)  # fmt: skip
def test_ring(nodes, nbytes, machine, with_codec):
    """In one piece: exactly what its messages and additions, or the codec on its hops, add up to."""
    codec = dataclasses.replace(CODEC, ratio=0.25) if with_codec else None
    expected = simulated(algorithms.ring, nodes, nbytes, machine, codec) if nodes > 1 else 0
    assert cost_model.ring(nodes, nbytes, machine, codec).seconds == pytest.approx(expected, rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(
    nodes=st.sampled_from([2, 3, 4, 5, 8, 16]), nbytes=st.floats(1e4, 1e8), machine=MACHINES,
    pieces=st.sampled_from([2, 4]), with_codec=st.booleans(),
)  # fmt: skip
def test_ring_in_pieces(nodes, nbytes, machine, pieces, with_codec):
    """Close, whether the wire, the core or the latency is what takes long."""
    machine = dataclasses.replace(machine, pieces=pieces)
    codec = dataclasses.replace(CODEC, ratio=0.25) if with_codec else None
    expected = simulated(algorithms.ring, nodes, nbytes, machine, codec)
    assert cost_model.ring(nodes, nbytes, machine, codec).seconds == pytest.approx(expected, rel=0.2)


def test_ring_is_the_papers():
    """The formula as it stands in the literature."""
    p, n, m = 6, 4e6, GIGABIT
    expected = 2 * (p - 1) * m.alpha + 2 * (p - 1) / p * n * m.beta + (p - 1) / p * n * m.gamma
    assert cost_model.ring(p, n, m).seconds == pytest.approx(expected)
    assert cost_model.ring(p, n, m).work == pytest.approx((p - 1) / p * n * m.gamma)
    assert cost_model.ring(1, n, m) == cost_model.NOTHING
    half = CodecCost(0.5, 0, 0, 0)
    assert cost_model.ring(p, n, m, half).seconds == pytest.approx(
        cost_model.ring(p, n / 2, dataclasses.replace(m, gamma=0)).seconds
    )


def test_fastest():
    """Few bytes want few messages, many bytes few bytes."""
    for nodes in (4, 16):
        assert cost_model.fastest(nodes, 100, GIGABIT) == cost_model.doubling(nodes, 100, GIGABIT)
        assert cost_model.fastest(nodes, 1e9, GIGABIT).seconds == pytest.approx(
            cost_model.ring(nodes, 1e9, GIGABIT).seconds, rel=0.01
        )
        assert cost_model.fastest(nodes, 100, GIGABIT, CODEC) == cost_model.doubling(nodes, 100, GIGABIT)
        assert cost_model.fastest(nodes, 1e9, GIGABIT, CODEC) == cost_model.ring(nodes, 1e9, GIGABIT, CODEC)


def test_hierarchical():
    """Of one rank nothing, of one node no link, of several nodes both; lanes share link and work."""
    machine = dataclasses.replace(GIGABIT, sync=1e-3, node_ranks=4, node_sync=2e-5, node_beta=0.3e-9)
    n = 1e8
    assert cost_model.hierarchical(1, n, machine) == cost_model.NOTHING
    inside = 2e-5 + n * 0.3e-9
    assert cost_model.hierarchical(4, n, machine).seconds == cost_model.hierarchical(3, n, machine).seconds == inside
    lanes = dataclasses.replace(GIGABIT, gamma=GIGABIT.gamma / 4)
    assert cost_model.hierarchical(8, n, machine).seconds == pytest.approx(
        inside + 1e-3 + GIGABIT.alpha + cost_model.fastest(2, n, lanes).seconds
    )
    for codec in (None, CODEC):
        assert (
            cost_model.hierarchical(16, n, machine, codec).seconds
            > cost_model.hierarchical(8, n, machine, codec).seconds
        )
    assert cost_model.hierarchical(8, n, machine, CODEC).seconds < cost_model.hierarchical(8, n, machine).seconds


TIMES = st.floats(1e-3, 1.0)


@settings(deadline=None, max_examples=40)
@given(compute=TIMES, update=st.floats(0, 0.1), exchange=TIMES, width=st.integers(1, 5), channels=st.integers(1, 4))
def test_pipe(compute, update, exchange, width, channels):
    """A step computes, waits for the exchange of width - 1 steps before, and updates; channels go on by themselves."""
    steps = 400
    ready, ended, now = [], [], 0.0
    free = [0.0] * channels
    for step in range(steps):
        now += compute
        ready.append(now)
        channel = int(np.argmin(free))
        free[channel] = max(now, free[channel]) + exchange
        ended.append(free[channel])
        if step >= width - 1:
            now = max(now, ended[step - width + 1])
        now += update
    expected = (now - ready[steps // 2]) / (steps - steps // 2 - 1 + update / (compute + update))
    assert pipe.step_seconds(compute, update, Cost(exchange), width, channels) == pytest.approx(expected, rel=0.05)
    if width == 1:
        assert pipe.step_seconds(compute, update, Cost(exchange), 1) == compute + exchange + update  # sync
    elif channels == 1:
        assert pipe.step_seconds(compute, update, Cost(exchange), width) == max(compute + update, exchange)


def test_pipe_of_busy_cores():
    """What the exchange works is missing elsewhere."""
    assert pipe.step_seconds(1.0, 0.1, Cost(0.5, 0.2), 2, busy=True) == pytest.approx(1.3)
    assert pipe.step_seconds(1.0, 0.1, Cost(0.5, 0.2), 2) == pytest.approx(1.1)


@settings(deadline=None, max_examples=40)
@given(compute=TIMES, exchange=TIMES, buckets=st.integers(1, 9))
def test_overlapped(compute, exchange, buckets):
    """Buckets that are exchanged in the order in which backward ends them."""
    now, free = compute / 3, 0.0
    for _ in range(buckets):
        now += compute * 2 / 3 / buckets
        free = max(now, free) + exchange / buckets
    assert step_cost.overlapped(compute, 0.01, Cost(exchange), buckets) == pytest.approx(free + 0.01)


@settings(deadline=None, max_examples=25)
@given(ranks=st.integers(1, 9), compute=TIMES, update=st.floats(0, 0.1), nbytes=st.floats(1e3, 1e8), machine=MACHINES)
def test_parameter_server(ranks, compute, update, nbytes, machine):
    """One link for all gradients and all weights; what has come is added while the next comes."""
    gathered = []

    def server():
        yield [Work(compute)]
        asked = [Receive(worker) for worker in range(1, ranks)]
        yield Post(asked)
        for request in asked:
            yield [request]
            yield [Work(nbytes * machine.gamma)]
        yield [Work(update)]
        gathered.append(True)
        yield [Send(worker, nbytes) for worker in range(1, ranks)]

    def worker():
        yield [Work(compute)]
        yield [Send(0, nbytes)]
        yield [Receive(0)]

    simulation = Simulation(ranks, machine.alpha, machine.beta)
    for rank in range(ranks):
        simulation.start(rank, worker() if rank else server())
    expected = simulation.run()
    assert gathered
    assert step_cost.parameter_server(ranks, nbytes, compute, update, machine) == pytest.approx(expected, rel=1e-6)


def test_codec_of_a_message():
    """Fewer bytes on the wire, for work."""
    plain, encoded = cost_model.message(1e8, GIGABIT), cost_model.message(1e8, GIGABIT, CODEC)
    assert encoded.seconds == pytest.approx((plain.seconds - GIGABIT.alpha) * 0.26 + GIGABIT.alpha + 1e8 * 0.8e-9)
    assert (plain.work, encoded.work) == (0, pytest.approx(0.08))


def test_work_of_transfers():
    """Every message and every byte that is sent is work, and takes no longer for that."""
    working = dataclasses.replace(GIGABIT, alpha_work=1e-3, beta_work=1e-9)
    n = 1e6
    for formula, messages, nbytes in (
        (cost_model.doubling, 3, 3 * n),
        (cost_model.rabenseifner, 6, 2 * 7 / 8 * n),
        (cost_model.ring, 14, 2 * 7 / 8 * n),
        (lambda ranks, nbytes, machine: cost_model.message(nbytes, machine), 1, n),
    ):
        plain, found = formula(8, n, GIGABIT), formula(8, n, working)
        assert found.seconds == plain.seconds
        assert found.work - plain.work == pytest.approx(messages * 1e-3 + nbytes * 1e-9)
    coded = cost_model.ring(8, n, working, CODEC).work - cost_model.ring(8, n, GIGABIT, CODEC).work
    assert coded == pytest.approx(14 * 1e-3 + 2 * 7 / 8 * n * CODEC.ratio * 1e-9)


@settings(deadline=None, max_examples=40)
@given(
    own=TIMES, part=st.floats(0, 1), exchange=st.floats(0, 1), longer=st.floats(0, 1), cores=st.integers(1, 8),
    ranks=st.integers(1, 32),
)  # fmt: skip
def test_crowded(own, part, exchange, longer, cores, ranks):
    """No shorter than with cores to spare, nor than all work on all cores; longer by what its own work waits."""
    step, own_work = own + longer, own * part
    found = step_cost.crowded(step, own, own_work, exchange, cores, ranks)
    least = ranks * (own_work + exchange) / cores
    assert found >= step and found >= least
    rho = least / found
    if found > 1.000001 * max(step, least):
        assert own + own_work * (1 / (1 - rho**cores) - 1) == pytest.approx(found, rel=1e-3)
    assert step_cost.crowded(step, own, own_work, exchange, 0, ranks) == step
    assert step_cost.crowded(step, own, own_work, exchange, cores, ranks + 1) >= found
    assert step_cost.crowded(step, own, 0, 0, cores, ranks) == step


@pytest.mark.parametrize(
    ("cores", "ranks", "work"), [(1, 4, 0.1), (1, 8, 0.07), (2, 8, 0.1), (2, 8, 0.17), (4, 16, 0.17)]
)
def test_crowded_is_a_queue(cores, ranks, work):
    """Ranks whose accelerators compute between bursts of work, which go to cores in the order in which they come."""
    random, steps, bursts = np.random.default_rng(0), 300, 10
    free = [0.0] * cores
    waiting = [(float(random.exponential((1 - work) / bursts)), rank) for rank in range(ranks)]
    done = [0] * ranks
    while min(done) < steps * bursts:
        came, rank = heapq.heappop(waiting)
        core = int(np.argmin(free))
        free[core] = max(came, free[core]) + random.exponential(work / bursts)
        done[rank] += 1
        heapq.heappush(waiting, (free[core] + random.exponential((1 - work) / bursts), rank))
    expected = max(free) / (sum(done) / ranks / bursts)
    assert step_cost.crowded(1.0, 1.0, work, 0.0, cores, ranks) == pytest.approx(expected, rel=0.1)


def test_efficiency():
    """Of a step of 4 seconds three are computing."""
    assert step_cost.efficiency(2.5, 0.5, 4.0) == 0.75
