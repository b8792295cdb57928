"""How long exchanges and steps take, as formulas: no clock, no MPI, no NumPy, and nothing of this package. What a step
takes with a strategy stands in the strategy's file.

The terms are those of Pipe-SGD (arXiv 1811.03619, its section on timing models) and of the literature on collectives:
a message of n bytes takes alpha + n beta, adding n bytes takes n gamma, and an exchange costs S before its first byte
moves. The allreduce algorithms are those of Thakur, Rabenseifner and Gropp (Optimization of Collective Communication
Operations in MPICH, 2005). A link sends and receives at the same time, at full speed both ways.

Everything is in seconds and bytes; bytes are those of float32 gradients, before any codec.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class CodecCost:
    """What a codec does to a byte of float32.

    Attributes:
        ratio: bytes on the wire for each.
        encode, decode, add: seconds for each; add is to decode and add.
    """

    ratio: float
    encode: float
    decode: float
    add: float


@dataclass(frozen=True)
class Machine:
    """Where training runs.

    Attributes:
        alpha: seconds that a message takes between nodes, however short.
        beta: seconds for each byte of a message between nodes; of a node, whatever the number of its ranks.
        gamma: seconds to add a byte, on one rank.
        sync: seconds that an exchange between nodes costs before its first byte moves, S.
        node_ranks: ranks of a node.
        node_sync, node_beta: seconds that an exchange inside a node costs, and for each byte of gradients: to copy in
            and to add.
        pieces: in how many pieces a ring has its bytes under way at most; while one is added another is on the wire.
        piece: the least bytes of a message of such a piece.
        alpha_work, beta_work: seconds that a rank's core is at work for a message that it sends and one that it
            receives, and for a byte of each.
        busy: whether ranks have no core to spare, so that the work of an exchange takes its time from computing.
        cores, crowd: so many cores are what so many ranks have between them; 0 for as many as they want.
        codecs: by name.
    """

    alpha: float
    beta: float
    gamma: float
    sync: float = 0.0
    node_ranks: int = 1
    node_sync: float = 0.0
    node_beta: float = 0.0
    pieces: int = 1
    piece: int = 1
    alpha_work: float = 0.0
    beta_work: float = 0.0
    busy: bool = False
    cores: int = 0
    crowd: int = 1
    codecs: Mapping[str, CodecCost] = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """Of an exchange.

    Attributes:
        seconds: from its begin to its end.
        work: seconds of that in which a rank's core is at work.
    """

    seconds: float
    work: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.work + other.work)

    def __mul__(self, times: float) -> Cost:
        return Cost(self.seconds * times, self.work * times)


NOTHING = Cost(0.0)

Allreduce = Callable[[int, float, Machine], Cost]


def transfers(messages: float, nbytes: float, machine: Machine) -> Cost:
    """So many messages one after the other, each beside one that is received, of so many bytes in all: m alpha + n
    beta."""
    return Cost(
        messages * machine.alpha + nbytes * machine.beta, messages * machine.alpha_work + nbytes * machine.beta_work
    )


def doubling(nodes: int, nbytes: float, machine: Machine) -> Cost:
    """Recursive doubling: log2 p (alpha + n beta + n gamma). Where p is no power of two, those beyond it hand their
    bytes to others first, and get the sum last: 2 (alpha + n beta) + n gamma more."""
    rounds, beyond = _rounds(nodes)
    messages, work = rounds + 2 * beyond, (rounds + beyond) * nbytes * machine.gamma
    return Cost(work, work) + transfers(messages, messages * nbytes, machine)


def rabenseifner(nodes: int, nbytes: float, machine: Machine) -> Cost:
    """Recursive halving, then doubling: 2 log2 p alpha + 2 (p-1)/p n beta + (p-1)/p n gamma; beyond a power of two as
    above."""
    rounds, beyond = _rounds(nodes)
    part = 1 - 1 / (1 << rounds)
    work = (part + beyond) * nbytes * machine.gamma
    return Cost(work, work) + transfers(2 * (rounds + beyond), 2 * (part + beyond) * nbytes, machine)


def ring(nodes: int, nbytes: float, machine: Machine, codec: CodecCost | None = None) -> Cost:
    """2 (p-1) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma, where all is in one piece.

    With a codec n beta is that of the encoded bytes. Each hop of the first way round encodes a slice, and decodes and
    adds one; then a slice is encoded and decoded where it is whole, and each hop of the second way round decodes one.

    In m pieces (`Machine.pieces`) the bytes take the longest of three: all pieces through the wire, all pieces through
    the core, or one piece from hop to hop with the others close behind it.
    """
    if nodes == 1:
        return NOTHING
    hops, ratio = nodes - 1, codec.ratio if codec else 1
    pieces = max(1, min(machine.pieces, int(nbytes * ratio / nodes / machine.piece)))
    piece = nbytes / nodes / pieces
    wire = piece * machine.beta * ratio
    gather = piece * (codec.encode + codec.add if codec else machine.gamma)  # at work in a hop of the first way round
    whole = piece * (codec.encode + codec.decode if codec else 0)
    spread = piece * (codec.decode if codec else 0)
    work = hops * (gather + spread) + whole
    hop = machine.alpha + wire
    through_wire = pieces * 2 * hops * wire + machine.alpha + (piece * codec.encode + spread if codec else 0)
    second_way = hop + spread + (hops - 1) * max(pieces * wire, hop + spread)
    through_core = max(pieces * work + hop, pieces * (hops * gather + whole) + hop + second_way)
    hop_by_hop = 2 * hops * hop + work + (pieces - 1) * max(wire, gather)
    transferring = transfers(2 * hops * pieces, 2 * hops * pieces * piece * ratio, machine).work
    return Cost(max(through_wire, through_core if pieces > 1 else 0, hop_by_hop), pieces * work + transferring)


def fastest(nodes: int, nbytes: float, machine: Machine, codec: CodecCost | None = None) -> Cost:
    """The least of the three; with a codec also of the ring that has it, since a codec does not pay for few bytes."""
    every: tuple[Allreduce, ...] = (doubling, rabenseifner, ring)
    costs = [algorithm(nodes, nbytes, machine) for algorithm in every]
    return min([*costs, *([ring(nodes, nbytes, machine, codec)] if codec else [])], key=lambda cost: cost.seconds)


def hierarchical(ranks: int, nbytes: float, machine: Machine, codec: CodecCost | None = None) -> Cost:
    """Sum inside each node through memory that its ranks share, then between nodes, each rank a part of the bytes.

    Inside: node_sync + n node_beta. Between q nodes of c ranks: S, a few bytes in which the nodes agree on what they
    do, and c rings side by side, each of n/c bytes on a c-th of the link: the wire of one ring, and a c-th of the work.
    """
    local = min(ranks, machine.node_ranks)
    nodes = -(-ranks // machine.node_ranks)
    cost = NOTHING
    if local > 1:
        cost += Cost(machine.node_sync + nbytes * machine.node_beta, nbytes * machine.node_beta)
    if nodes > 1:
        between = fastest(nodes, nbytes / local, replace(machine, beta=machine.beta * local), codec)
        cost += Cost(machine.sync) + doubling(nodes, 0, machine) + between
    return cost


def message(nbytes: float, machine: Machine, codec: CodecCost | None = None) -> Cost:
    """One message to a partner and one from another, without what is done with what came: alpha + n beta, and the
    codec."""
    encode = nbytes * codec.encode if codec else 0.0
    return Cost(encode, encode) + transfers(1, nbytes * (codec.ratio if codec else 1), machine)


def overlapped(
    compute: float, update: float, exchange: Cost, buckets: int, backward: float = 2 / 3, busy: bool = False
) -> float:
    """Compute, exchange, update, with a bucket that travels while backward computes the next.

    Two machines in a row, b equal jobs on each: T/b + E/b + (b-1) max(T/b, E/b), for T of backward and E of the
    exchange.

    Args:
        backward: its part of computing; two thirds, since it does twice the work of forward.
        busy: see `Machine`.
    """
    first, second = compute * backward / buckets, exchange.seconds / buckets
    hidden = compute * (1 - backward) + first + second + (buckets - 1) * max(first, second) + update
    return max(hidden, compute + update + exchange.work) if busy else hidden


@dataclass(frozen=True)
class StepCost:
    """What a step takes.

    Attributes:
        seconds: of the step, if ranks have as many cores as they want.
        own: seconds of what a rank does by itself: to compute, to update, and what the strategy adds.
        exchange_work: seconds in which a rank's core is at work for the exchange, and for what the strategy adds.
    """

    seconds: float
    own: float
    exchange_work: float


@dataclass(frozen=True)
class PlannedStep:
    """What the formula of a strategy gets: a step, and where it runs.

    Attributes:
        compute, update: seconds of a step on one rank, forward and backward, and to apply gradients.
        nbytes: of all gradients, and of the weights, as float32.
        buckets: in how many parts gradients are exchanged.
        ranks: 2 or more.
        machine, codec: where, and what encodes.
    """

    compute: float
    update: float
    nbytes: float
    buckets: int
    ranks: int
    machine: Machine
    codec: CodecCost | None = None

    def exchange(self) -> Cost:
        """Of all gradients among all ranks, bucket by bucket."""
        return hierarchical(self.ranks, self.nbytes / self.buckets, self.machine, self.codec) * self.buckets

    def message(self) -> Cost:
        """Of as many bytes as the weights have, to one other rank, while those of another come."""
        return message(self.nbytes, self.machine, self.codec)

    def overlapped(self) -> StepCost:
        """With an exchange while backward continues: what a strategy takes that averages gradients in every step."""
        exchange = self.exchange()
        seconds = overlapped(self.compute, self.update, exchange, self.buckets, busy=self.machine.busy)
        return self.takes(seconds, exchange)

    def takes(self, seconds: float, exchange: Cost, extra: float = 0.0) -> StepCost:
        """A step of so many seconds.

        Args:
            extra: seconds of a rank's core that the strategy adds, such as to average.
        """
        return StepCost(seconds, self.compute + self.update + extra, exchange.work + extra)


def parameter_server(ranks: int, nbytes: float, compute: float, update: float, machine: Machine) -> float:
    """A server on one of the ranks: the others send it their gradients and get weights, all of it through its one link.

    compute + alpha + n beta + (p-2) n max(beta, gamma) + n gamma, since it adds while it receives; then the update;
    then alpha + (p-1) n beta.
    """
    if ranks == 1:
        return compute + update
    wire, work = nbytes * machine.beta, nbytes * machine.gamma
    gathered = machine.alpha + wire + (ranks - 2) * max(wire, work) + work
    return compute + gathered + update + machine.alpha + (ranks - 1) * wire


def crowded(step: float, own: float, own_work: float, exchange_work: float, cores: int, ranks: int) -> float:
    """A step of ranks that have few cores between them, whose accelerators do most of what is computed.

    At least all the work of all ranks on all cores. And what a rank's core has to do for its own computing waits for
    that of others: with rho the part of the time in which the m cores are at work, it takes 1 / (1 - rho^m) as long,
    the usual approximation for a queue of m servers (M/M/m, exact for one and two: Gunther, Analyzing Computer System
    Performance with Perl::PDQ). The shorter the step, the larger rho; this is the step at which the two agree.

    Args:
        step: with as many cores as ranks want.
        own: of that, computing and updating.
        own_work, exchange_work: seconds in which a rank's core is at work for its computing and updating, and for its
            exchange.
        cores, ranks: how many cores how many ranks have between them; 0 cores for as many as they want.
    """
    work = ranks * (own_work + exchange_work)
    if not cores or work == 0:
        return step

    def needed(seconds: float) -> float:
        return own + own_work * (1 / (1 - (work / (cores * seconds)) ** cores) - 1)

    low = max(step, work / cores * (1 + 1e-9))
    if needed(low) <= low:
        return low
    high = 2 * low
    while needed(high) > high:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle) > middle else (low, middle)
    return high


def efficiency(compute: float, update: float, step: float) -> float:
    """The part of a step in which a rank does what a rank alone would do."""
    return (compute + update) / step


def _rounds(nodes: int) -> tuple[int, int]:
    """log2 of the largest power of two that is no more, and 1 where there are nodes beyond it."""
    rounds = int(math.log2(nodes))
    return rounds, int(nodes > 1 << rounds)
