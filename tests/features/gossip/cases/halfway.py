"""Meetings of real ranks, without Keras: messages that travel while a rank does something else."""

from __future__ import annotations

import time

import numpy as np

from matex_tf.core import world
from matex_tf.core.waiting import StallDetector
from matex_tf.exchange.network.messenger import Messenger, pieces
from matex_tf.features.gossip.pairwise_average import PairwiseAverager
from matex_tf.features.gossip.topology import Partners


def weights_of(size, shapes, seed=0):
    """Weights of each rank."""
    random = np.random.default_rng(seed)
    return [[np.asarray(random.normal(size=shape), np.float32) for shape in shapes] for _ in range(size)]


class Around:
    """Partners that are further away in each turn."""

    def __init__(self, size):
        self.size = size

    def of(self, step, rank):
        away = 1 + step % (self.size - 1)
        return (rank + away) % self.size, (rank - away) % self.size


def start(averager, arrays):
    """Begin to send arrays, all of them at once, and to receive a partner's."""
    averager.greet()
    for part, members in enumerate(averager.parts):
        averager.send(part, [arrays[member] for member in members])


def traffic(averager):
    """Messages and bytes that a rank sends, and receives, in one exchange."""
    parts = zip(averager._coded, averager._sent, strict=True)
    lengths = [(part.outgoing if part else sent).nbytes for part, sent in parts]
    return sum(map(pieces, lengths)) + len(lengths) + 1, sum(lengths) + len(lengths) + averager._said.nbytes


def meet(turns=6, length=300_000, limit=1 << 20, at_once=False):
    """Whether weights are the expected ones after some turns; `at_once`: a turn's parts are sent while those of the one
    before arrive."""
    ranks = world.current()
    messenger = Messenger(ranks.split_all())
    shapes, dtypes = [(length,), (3, 4), (), (2, length)], [np.dtype("float32")] * 4
    averager = PairwiseAverager(messenger, ranks.rank, Around(ranks.size), shapes, dtypes, limit)
    mine = [np.full(shape, float(ranks.rank), np.float32) for shape in shapes]
    expected = np.arange(ranks.size, dtype=np.float32)
    for turn in range(turns):
        if not (at_once and turn):
            start(averager, mine)
        for array in mine:
            array += 1  # the next step
        goes_on = at_once and turn < turns - 1
        for part in averager.turn() if goes_on else averager.arriving():
            own = [mine[member] for member in averager.parts[part]]
            for array, member in zip(own, averager.parts[part], strict=True):
                array += averager.moves[member]
            if goes_on:
                averager.send(part, own)
        sources = [Around(ranks.size).of(turn, rank)[1] for rank in range(ranks.size)]
        expected = (expected + expected[sources]) / 2 + 1
    averager.stop()
    messenger.close()
    return all((array == expected[ranks.rank]).all() for array in mine)


def coded(shapes, codec, feedback, turns=5):
    """Bytes of an exchange, and the weights of this rank after some; they are those of `test_gossip.weights_of`."""
    ranks = world.current()
    messenger = Messenger(ranks.split_all())
    dtypes, partners = [np.dtype("float32")] * len(shapes), Partners(ranks.size, 3)
    averager = PairwiseAverager(
        messenger, ranks.rank, partners, shapes, dtypes, 1 << 20, codec=codec, feedback=feedback
    )
    averager.refer(weights_of(1, shapes, seed=9)[0])
    mine = weights_of(ranks.size, shapes)[ranks.rank]
    for _ in range(turns):
        start(averager, mine)
        averager.finish()
        for array, move in zip(mine, averager.moves, strict=True):
            array += move
    averager.stop()
    messenger.close()
    return traffic(averager)[1], mine


def travels():
    """How long a rank waits for what has had time to travel, and for a rank that comes late; and what it says then."""
    ranks = world.current()
    messenger = Messenger(ranks.split_all())
    said = []
    stalls = StallDetector(1, 0, said.append)
    averager = PairwiseAverager(
        messenger,
        ranks.rank,
        Around(ranks.size),
        [(2_000_000,)],
        [np.dtype("float32")],
        1 << 20,
        lambda partners, seconds: stalls.check(partners, seconds, "gossip"),
    )
    mine = [np.zeros(2_000_000, np.float32)]
    waited = []
    for turn in range(2):
        ranks.barrier("begin")
        if turn and ranks.rank == 0:
            time.sleep(2)
        start(averager, mine)
        if not turn:
            time.sleep(1)
        begin = time.perf_counter()
        averager.finish()
        waited.append(time.perf_counter() - begin)
    averager.stop()
    messenger.close()
    return waited, said


def stops():
    """Rank 0 stops one turn before the others."""
    ranks = world.current()
    messenger = Messenger(ranks.split_all())
    averager = PairwiseAverager(messenger, ranks.rank, Around(ranks.size), [(5,)], [np.dtype("float32")], 1 << 20)
    for _ in range(3 - (ranks.rank == 0)):
        start(averager, [np.zeros(5, np.float32)])
        averager.finish()
    averager.stop()
