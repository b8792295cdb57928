"""How long exchanges take, as formulas: no clock, no MPI, no NumPy, and nothing of this package. What a step takes is
in `step_cost`, and in the file of each strategy.

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

#: Bytes of a full frame of Ethernet for each byte that TCP carries in it: a link of a known rate carries so much less.
FRAMES = 1514 / 1448

#: How much longer bytes take on a link between groups that carries as many the other way. Where a link is slower than
#: those before it, what waits for it waits in the network, and what TCP acknowledges waits behind the data of the other
#: way, so that the link is idle now and then (Zhang, Shenker, Clark: Observations on the Dynamics of a Congestion
#: Control Algorithm, SIGCOMM 1991). Measured: sums of 4.2 MB over links of 100 Mbit/s between emulated clusters.
TWO_WAYS = 1.15


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
        copy: seconds to copy a byte into memory that was not in use.
        sync: seconds that an exchange between nodes costs before its first byte moves, S.
        node_ranks: ranks of a node.
        node_sync, node_beta: seconds that an exchange inside a node costs, and for each byte of gradients: to copy in
            and to add.
        pieces: in how many pieces a ring has its bytes under way at most; while one is added another is on the wire.
        piece: the least bytes of a message of such a piece.
        alpha_work, beta_work: seconds that a rank's core is at work for a message that it sends and one that it
            receives, and for a byte of each.
        busy: whether ranks have no core to spare, so that the work of an exchange takes its time from computing.
        far_alpha, far_beta: the same as alpha and beta between groups, with nothing that comes the other way; beta is
            that of all that a group sends, whatever the number of its ranks. 0 and 0 where groups have the links that
            nodes have.
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
    copy: float = 0.0
    busy: bool = False
    far_alpha: float = 0.0
    far_beta: float = 0.0
    cores: int = 0
    crowd: int = 1
    codecs: Mapping[str, CodecCost] = field(default_factory=dict)

    @property
    def far(self) -> Machine:
        """The machine with the links between groups, which are at work both ways, for those between nodes."""
        return replace(self, alpha=self.far_alpha, beta=self.far_beta * TWO_WAYS) if self.far_beta else self


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
    """Messages one after the other, each beside one that is received: m alpha + n beta.

    Args:
        messages: m, how many.
        nbytes: n, of all of them.
        machine: gives alpha and beta.
    """
    return Cost(
        messages * machine.alpha + nbytes * machine.beta, messages * machine.alpha_work + nbytes * machine.beta_work
    )


def doubling(nodes: int, nbytes: float, machine: Machine) -> Cost:
    """Recursive doubling: log2 p (alpha + n beta + n gamma). Where p is not a power of two, those beyond it hand their
    bytes to others first, and get the sum last: 2 (alpha + n beta) + n gamma more.

    Args:
        nodes: p.
        nbytes: n, of what each gives to the sum, which has as many.
        machine: gives alpha, beta and gamma.
    """
    rounds, beyond = _rounds(nodes)
    messages, work = rounds + 2 * beyond, (rounds + beyond) * nbytes * machine.gamma
    return Cost(work, work) + transfers(messages, messages * nbytes, machine)


def rabenseifner(nodes: int, nbytes: float, machine: Machine) -> Cost:
    """Recursive halving, then doubling (Rabenseifner's algorithm): 2 log2 p alpha + 2 (p-1)/p n beta + (p-1)/p n gamma;
    beyond a power of two as in `doubling`.

    Args:
        nodes, nbytes, machine: see `doubling`.
    """
    rounds, beyond = _rounds(nodes)
    part = 1 - 1 / (1 << rounds)
    work = (part + beyond) * nbytes * machine.gamma
    return Cost(work, work) + transfers(2 * (rounds + beyond), 2 * (part + beyond) * nbytes, machine)


def ring(nodes: int, nbytes: float, machine: Machine, codec: CodecCost | None = None) -> Cost:
    """2 (p-1) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma, where all is in one piece.

    With a codec n beta is that of the encoded bytes. Each hop of the first way round encodes a slice, and decodes and
    adds one; then a slice is encoded and decoded where it is whole, and each hop of the second way round decodes one.

    In m pieces (`Machine.pieces`) the bytes take the longest of three: all pieces through the wire, all pieces through
    the core, or one piece from hop to hop with the others close after it.

    Args:
        nodes, nbytes, machine: see `doubling`.
        codec: what encodes each slice; None for nothing.
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
    """The least of the three; with a codec also of the ring that has it, since a codec does not pay for few bytes.

    Args:
        nodes, nbytes, machine, codec: see `ring`.
    """
    every: tuple[Allreduce, ...] = (doubling, rabenseifner, ring)
    costs = [algorithm(nodes, nbytes, machine) for algorithm in every]
    return min([*costs, *([ring(nodes, nbytes, machine, codec)] if codec else [])], key=lambda cost: cost.seconds)


def hierarchical(ranks: int, nbytes: float, machine: Machine, codec: CodecCost | None = None) -> Cost:
    """Sum inside each node through memory that its ranks share, then between nodes, each rank a part of the bytes.

    Inside: node_sync + n node_beta. Between q nodes of c ranks: S, a few bytes in which the nodes agree on what they
    do, and c rings side by side, each of n/c bytes on a c-th of the link: the wire of one ring, and a c-th of the work.

    Args:
        ranks: all together; nodes of `Machine.node_ranks` are filled one after the other.
        nbytes: n, of what each rank gives.
        machine: its nodes, and the links between them.
        codec: what encodes between nodes; None for nothing.
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
    codec.

    Args:
        nbytes: n, of each of the two.
        machine: gives alpha and beta.
        codec: what encodes the one that is sent; None for nothing.
    """
    encode = nbytes * codec.encode if codec else 0.0
    return Cost(encode, encode) + transfers(1, nbytes * (codec.ratio if codec else 1), machine)


def _rounds(nodes: int) -> tuple[int, int]:
    """log2 of the largest power of two that is not more, and 1 where there are nodes beyond it."""
    rounds = int(math.log2(nodes))
    return rounds, int(nodes > 1 << rounds)
