"""What `matex-tf plan` measures on the machines that it plans for: the terms of `cost_model`, by a job of its own.

Everything is measured as the exchange does it, with all ranks at it at the same time; a figure is the median over
rounds of the slowest rank's time.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.core import world
from matex_tf.core.world import World
from matex_tf.errors import DataError, MatexError
from matex_tf.exchange import process_group
from matex_tf.exchange.bucket import BucketPlan
from matex_tf.exchange.network import codec, lane, messenger
from matex_tf.exchange.network.lane import Lane
from matex_tf.planning.cost_model import CodecCost, Cost, Machine, doubling, hierarchical
from matex_tf.settings import Settings
from matex_tf.storage import atomic_file

ROUNDS = 9
_UNCOUNTED = 2
_FEW = 64  # bytes: what takes a message's latency and no more
_SOME, _MORE, _MANY = 1 << 20, 1 << 22, 1 << 24  # bytes, whose differences tell what a byte takes


def measure(ranks: World, rounds: int = ROUNDS) -> Machine:
    """The machine that these ranks run on; the same on every rank. Collective.

    Args:
        ranks: all that are to be measured; on one node alone, links stay at 0.
        rounds: how often each is timed, after those that do not count.
    """
    codecs = {name: _codec(ranks, name, rounds) for name in codec.CODECS}
    gamma = _gamma(ranks, rounds)
    machine = Machine(
        alpha=0.0, beta=0.0, gamma=gamma, node_ranks=max(map(len, ranks.nodes)), pieces=lane.PIECES,
        piece=lane.PIECE_BYTES, copy=_copy(ranks, rounds), busy=True, codecs=codecs,
    )  # fmt: skip
    if len(ranks.nodes) < ranks.size:
        node_sync, node_beta = _inside(ranks, rounds)
        machine = dataclasses.replace(machine, node_sync=node_sync, node_beta=node_beta)
    if len(ranks.nodes) > 1:
        alpha, beta = _link(ranks, rounds)
        machine = dataclasses.replace(machine, alpha=alpha, beta=beta)
        machine = _beyond_formulas(ranks, machine, rounds)
    return machine


def _beyond_formulas(ranks: World, machine: Machine, rounds: int) -> Machine:
    """The machine with what exchanges take besides what it has: so formulas are right where they were measured."""
    mine = [_sum_costs(ranks, nbytes, rounds) for nbytes in (_SOME, _MORE)]
    everyone = ranks.allgather([(cost.seconds, cost.work) for cost in mine], "compare exchanges")
    costs = np.array(everyone)
    some, more = map(Cost, costs[..., 0].max(axis=0).tolist(), costs[..., 1].mean(axis=0).tolist())
    unit = dataclasses.replace(machine, alpha_work=1.0), dataclasses.replace(machine, beta_work=1.0)

    def known(nbytes: int, one: Machine = machine) -> Cost:
        return hierarchical(ranks.size, nbytes, one)

    def counted(nbytes: int) -> list[float]:
        """Messages and bytes of an exchange."""
        return [known(nbytes, one).work - known(nbytes).work for one in unit]

    left = [some.work - known(_SOME).work, more.work - known(_MORE).work]
    (messages, some_bytes), (more_messages, more_bytes) = counted(_SOME), counted(_MORE)
    growth = more_messages / messages
    beta_work = max(0.0, (left[1] - left[0] * growth) / (more_bytes - some_bytes * growth))
    alpha_work = max(0.0, (left[0] - some_bytes * beta_work) / messages)
    sync = max(0.0, some.seconds - known(_SOME).seconds)
    return dataclasses.replace(machine, sync=sync, alpha_work=alpha_work, beta_work=beta_work)


def _gamma(ranks: World, rounds: int) -> float:
    total, part = np.ones(_SOME // 4, np.float32), np.ones(_SOME // 4, np.float32)
    return _slowest(ranks, lambda: np.add(total, part, out=total), rounds) / total.nbytes


def _copy(ranks: World, rounds: int) -> float:
    """Of a rank's own time: what other programs on its cores take is none of it."""
    values = np.ones(_MANY // 4, np.float32)
    own = _median(lambda: ranks.barrier("begin"), values.copy, rounds).work
    return max(ranks.allgather(own, "compare copies")) / values.nbytes


def _codec(ranks: World, name: str, rounds: int) -> CodecCost:
    one = codec.create(name)
    values = np.random.default_rng(0).normal(size=_SOME // 4).astype(np.float32)
    target, wire = np.empty_like(values), np.empty(one.nbytes(values.size), np.uint8)
    works = (
        lambda: one.encode(values, wire),
        lambda: one.decode(wire, target),
        lambda: one.add(wire, target),
    )
    encode, decode, add = (_slowest(ranks, work, rounds) / values.nbytes for work in works)
    return CodecCost(wire.nbytes / values.nbytes, encode, decode, add)


def _inside(ranks: World, rounds: int) -> tuple[float, float]:
    """An exchange among the ranks of each node, all nodes at once."""
    node = World(ranks.split(ranks.node, ranks.local_rank), ranks.host)
    few, some, many = (
        0.0 if node.is_single else _sum_costs(node, nbytes, rounds).seconds for nbytes in (_FEW, _SOME, _MANY)
    )
    node.free()
    everyone = np.array(ranks.allgather((few, some, many), "compare the nodes")).max(axis=0)
    return float(everyone[0]), _slope(everyone[1], everyone[2])


def _link(ranks: World, rounds: int) -> tuple[float, float]:
    """Alpha and beta between the first ranks of all nodes, all nodes at once."""
    comm = ranks.split(0 if ranks.local_rank == 0 else None, ranks.node)
    nodes = len(ranks.nodes)
    link = (0.0, 0.0, 0.0)
    if comm is not None:
        lane = Lane(comm)
        few = np.ones(_FEW // 4, np.float32)
        source, target = np.ones(_MANY // 4, np.float32), np.ones(_MANY // 4, np.float32)
        right, left = (lane.rank + 1) % nodes, (lane.rank - 1) % nodes

        def agree() -> None:
            lane.start(few)
            lane.finish()

        def send(nbytes: int) -> Callable[[], None]:
            sent, came = source[: nbytes // 4], target[: nbytes // 4]

            def work() -> None:
                lane.begin(messenger.swap(lane, sent, came, right, left, 0))
                lane.finish()

            return work

        seconds = [_median(comm.barrier, work, rounds).seconds for work in (agree, send(_SOME), send(_MANY))]
        link = (seconds[0] / doubling(nodes, 0, Machine(1.0, 0.0, 0.0)).seconds, seconds[1], seconds[2])
        lane.close()
    alpha, some, many = np.array(ranks.allgather(link, "compare the links")).max(axis=0)
    return float(alpha), _slope(some, many)


def _sum_costs(ranks: World, nbytes: int, rounds: int) -> Cost:
    arrays = [np.ones(nbytes // 4, np.float32)]
    plan = BucketPlan("measure", ["array"], [arrays[0].shape], [arrays[0].dtype], nbytes)
    return _median(lambda: ranks.barrier("begin"), lambda: process_group.sum_planned(ranks, plan, arrays), rounds)


def _slope(some: float, many: float) -> float:
    """Seconds of a byte; never zero, which a busy machine's clock could say."""
    return max(1e-13, float(many - some) / (_MANY - _SOME))


def _slowest(ranks: World, work: Callable[[], Any], rounds: int) -> float:
    return max(ranks.allgather(_median(lambda: ranks.barrier("begin"), work, rounds).seconds, "compare"))


def _median(begin: Callable[[], Any], work: Callable[[], Any], rounds: int) -> Cost:
    """Of the seconds that work takes, and of those in which this process was at work."""
    seconds, at_work = [], []
    for _ in range(_UNCOUNTED + rounds):
        begin()
        start, process = time.perf_counter(), time.process_time()
        work()
        seconds.append(time.perf_counter() - start)
        at_work.append(time.process_time() - process)
    return Cost(statistics.median(seconds[_UNCOUNTED:]), statistics.median(at_work[_UNCOUNTED:]))


def read(path: str) -> tuple[Machine, list[int]]:
    """What a job of this module wrote: the machine, and the ranks of each node."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        machine = found["machine"]
        machine["codecs"] = {name: CodecCost(**cost) for name, cost in machine["codecs"].items()}
        return Machine(**machine), list(found["ranks_of_nodes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not hold what ranks measured ({error!r}).") from None


def main(words: Sequence[str]) -> int:
    """One rank of the job; the argument is the file that rank 0 writes."""
    ranks = world.init()
    if ranks.is_single:
        raise MatexError("links can be measured on two ranks or more: matex-tf plan -n 2.")
    machine = measure(ranks)
    if ranks.rank == 0:
        nodes = [len(node) for node in ranks.nodes]
        atomic_file.put_json(words[0], {"ranks_of_nodes": nodes, "machine": dataclasses.asdict(machine)}, indent=1)
    ranks.barrier("end")
    return 0


if __name__ == "__main__":
    Settings.read()
    sys.exit(main(sys.argv[1:]))
