"""How long a step takes, as formulas: what strategies have in common. What a step takes with a strategy stands in the
strategy's file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from matex_tf.planning.cost_model import NOTHING, CodecCost, Cost, Machine, hierarchical, message, transfers


def overlapped(
    compute: float, update: float, exchange: Cost, buckets: int, backward: float = 2 / 3, busy: bool = False
) -> float:
    """Compute, exchange, update, with a bucket that travels while backward computes the next.

    Two machines in a row, b equal jobs on each: T/b + E/b + (b-1) max(T/b, E/b), for T of backward and E of the
    exchange.

    Args:
        backward: its part of computing; two thirds, since it does twice the work of forward.
        busy: see `cost_model.Machine`.
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
        group_ranks: how many ranks are near each other, or train as one.
        servers: ranks that keep the center and train nothing; 0 where it lies on those that train.
    """

    compute: float
    update: float
    nbytes: float
    buckets: int
    ranks: int
    machine: Machine
    codec: CodecCost | None = None
    group_ranks: int = 1
    servers: int = 0

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return -(-self.ranks // self.group_ranks)

    def exchange(self) -> Cost:
        """Of all gradients among all ranks, bucket by bucket."""
        machine = self.machine.far if self.groups > 1 else self.machine
        return hierarchical(self.ranks, self.nbytes / self.buckets, machine, self.codec) * self.buckets

    def message(self) -> Cost:
        """Of as many bytes as the weights have, to one other rank, while those of another come.

        In some steps all ranks of a group send to other groups over one link, and others wait for these. Where groups
        are few, fewer do in other steps, which makes up for `TWO_WAYS`.
        """
        far = self.machine.far_beta and self.groups > 1
        if not far:
            return message(self.nbytes, self.machine, self.codec)
        machine = replace(self.machine, alpha=self.machine.far_alpha, beta=self.machine.far_beta)
        return message(self.nbytes * self.group_ranks, machine, self.codec)

    def inside(self) -> StepCost:
        """A step of a group by itself."""
        if self.group_ranks == 1:
            return self.takes(self.compute + self.update, NOTHING)
        return replace(self, ranks=self.group_ranks, machine=replace(self.machine, far_beta=0.0)).overlapped()

    def center(self) -> Cost:
        """A group meets the center: all numbers to the servers, and as many back, while the other groups do the same.

        2 alpha + 2 n beta for a group's link; where the ranks themselves keep the center n is less by what lies in the
        group, and the link carries as much again of what others ask for, in the other half of the time. S servers of
        their own have g n / S each way for g groups.
        """
        ratio, machine = self.codec.ratio if self.codec else 1.0, self.machine.far
        away = 1.0 if self.servers else 1 - 1 / self.groups
        through = max(away, self.groups / self.servers if self.servers else 0.0) * self.nbytes * ratio
        work = self.nbytes / self.group_ranks * (self.codec.encode + self.codec.add if self.codec else machine.gamma)
        return Cost(2 * work, 2 * work) + transfers(2, 2 * through, machine)

    def gathered(self) -> Cost:
        """The ranks of a group put together what each has of the center: (r-1) alpha + (r-1)/r n beta of r ranks."""
        ranks = self.group_ranks
        if ranks == 1:
            return NOTHING
        if ranks <= self.machine.node_ranks:
            return Cost(self.nbytes * self.machine.node_beta, self.nbytes * self.machine.node_beta)
        return transfers(ranks - 1, (1 - 1 / ranks) * self.nbytes, self.machine)

    def handled(self, whole: float, shared: float = 0.0) -> float:
        """Seconds in which a rank reads weights, works on them and sets them, in passes over memory.

        Args:
            whole: over all weights.
            shared: over the part of a rank, where the ranks of a group share them out.
        """
        return (whole + shared / self.group_ranks) * self.nbytes * self.machine.copy

    def overlapped(self) -> StepCost:
        """With an exchange while backward continues: what a strategy takes that averages gradients in every step."""
        exchange = self.exchange()
        seconds = overlapped(self.compute, self.update, exchange, self.buckets, busy=self.machine.busy)
        return self.takes(seconds, exchange)

    def sharded(self, gathers: int, between: float) -> StepCost:
        """A step with state in parts (ZeRO, arXiv 1910.02054, section 7), each rank of p updating 1/p.

        Gradients are scattered while backward continues, which takes half of an allreduce. What is gathered takes the
        other half each time, and nothing is computed meanwhile.

        Args:
            gathers: how often in a step the weights are gathered: once behind the update, or before forward and before
                backward.
            between: seconds that no rank saves: from the end of a step to the next one.
        """
        half, update = self.exchange() * 0.5, (self.update - between) / self.ranks + between
        seconds = overlapped(self.compute, update, half, self.buckets, busy=self.machine.busy)
        whole = replace(self, update=update)
        return whole.takes(seconds + gathers * half.seconds, half * (1 + gathers))

    def takes(self, seconds: float, exchange: Cost, extra: float = 0.0, inside: StepCost | None = None) -> StepCost:
        """A step of so many seconds.

        Args:
            extra: seconds of a rank's core that the strategy adds, such as to average.
            inside: the step of a group by itself, whose exchange comes on top.
        """
        work = exchange.work + extra + (inside.exchange_work if inside else 0.0)
        return StepCost(seconds, self.compute + self.update + extra, work)


def parameter_server(ranks: int, nbytes: float, compute: float, update: float, machine: Machine) -> float:
    """Seconds of a step with a server on one of the ranks: the others send it their gradients and get weights, all
    through its one link.

    compute + alpha + n beta + (p-2) n max(beta, gamma) + n gamma, since it adds while it receives; then the update;
    then alpha + (p-1) n beta.

    Args:
        ranks: p, with the one that has the server.
        nbytes: n, of all gradients, and of the weights.
        compute, update: seconds of forward and backward on a rank, and to apply gradients.
        machine: gives alpha, beta and gamma.
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
    """The part of a step in which a rank does what a rank alone would do.

    Args:
        compute, update: seconds of a step on one rank, forward and backward, and to apply gradients.
        step: seconds of a step on many.
    """
    return (compute + update) / step
