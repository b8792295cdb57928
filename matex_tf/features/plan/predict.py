"""What a step takes with each strategy on each number of ranks: the formulas of `cost_model`, `step_cost` and the
strategies, put together as matex_tf trains; as a table and as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from matex_tf.planning import plotting, step_cost
from matex_tf.planning.cost_model import CodecCost, Machine
from matex_tf.planning.step_cost import PlannedStep
from matex_tf.settings import Settings, options
from matex_tf.strategies import BASELINE, STRATEGIES

#: All of the center on one of the ranks, to compare with; matex_tf has it in pieces.
SERVER = "one-server"

#: A strategy that changes less is named the best if it is slower by no more than this.
AS_GOOD = 1.02
#: The same for sync, which changes nothing: less than a tenth is not worth another answer.
WORTH_IT = 1.1

#: What a codec changes of what is computed; a strategy says so itself.
ROUNDED = "what travels between nodes is rounded"

LARGEST = 4096


@dataclass(frozen=True)
class Job:
    """What is trained.

    Attributes:
        name: of the script.
        ranks: how many there are now.
        compute, update: seconds of a step, on one rank, forward and backward and applying.
        nbytes: of gradients, as float32.
        buckets: in how many parts they are exchanged.
        work: seconds of a step in which a rank's cores are at work, without the exchange; a mean over the ranks.
        between: seconds from the end of a step to the next one, in which a rank gets its batch and calls callbacks.
        slots: of the optimizer, for each weight.
    """

    name: str
    ranks: int
    compute: float
    update: float
    nbytes: float
    buckets: int = 1
    work: float = 0.0
    between: float = 0.0
    slots: int = 2

    @property
    def after(self) -> float:
        """Seconds of what a rank does by itself once gradients have been exchanged."""
        return self.update + self.between


@dataclass(frozen=True)
class Row:
    """One number of ranks: seconds of a step and efficiency by strategy, the best; and by `--shard` bytes of a rank,
    and seconds of a step of sync."""

    ranks: int
    seconds: Mapping[str, float]
    efficiency: Mapping[str, float]
    best: str
    memory: Mapping[str, float] = field(default_factory=dict)
    shards: Mapping[str, float] = field(default_factory=dict)


def sizes(now: int, most: int = LARGEST, limit: int = 0) -> list[int]:
    """The numbers of ranks to predict for: now, 2, 4, … 4,096, and the most.

    Args:
        now: how many there are.
        most: how many there shall be; above it, only `now`.
        limit: none is above this, not `most` either; 0 for no limit.
    """
    wanted = {now, most, *(1 << power for power in range(1, 13))}
    return sorted(size for size in wanted if size <= (limit or max(most, now)))


def predict(
    job: Job, machine: Machine, ranks: int, scaling: str = "weak", settings: Settings | None = None, near: int = 1
) -> Row:
    """What a step takes.

    Args:
        job: as it is now.
        machine: where, with the codecs that are to be looked at.
        ranks: how many there shall be.
        scaling: "weak", each rank keeps its rows, so the global batch grows; "strong", the global batch stays, so a
            rank computes less.
        settings: those of the run, with servers and the options of strategies; the defaults where it is None.
        near: ranks of a group, see `PlannedStep.group_ranks`.
    """
    settings = Settings() if settings is None else settings
    compute = job.compute * (job.ranks / ranks if scaling == "strong" else 1)
    seconds = {
        name: _step(strategy, settings, job, compute, machine, ranks, machine.codecs[codec] if codec else None, near)
        for name, (strategy, codec) in compared().items()
        if not codec or codec in machine.codecs
    }
    efficiency = {name: step_cost.efficiency(compute, job.after, step) for name, step in seconds.items()}
    held = memory(job, ranks, machine.node_ranks)
    return Row(ranks, seconds, efficiency, best(seconds), held, shards(job, compute, machine, ranks, seconds[BASELINE]))


#: How often the weights are gathered in a step, by `--shard`.
GATHERS = {"state": 1, "gradients": 1, "weights": 2}


def shards(job: Job, compute: float, machine: Machine, ranks: int, whole: float) -> dict[str, float]:
    """Seconds of a step of sync by `--shard`. Args: compute: of them; whole: those with nothing in parts."""
    if ranks == 1:
        return {"none": whole, **dict.fromkeys(GATHERS, whole)}
    step = PlannedStep(compute, job.after, job.nbytes, job.buckets, ranks, machine)
    found = {"none": whole}
    for choice, gathers in GATHERS.items():
        cost = step.sharded(gathers, job.between)
        found[choice] = step_cost.crowded(
            cost.seconds, cost.own, job.work, cost.exchange_work, machine.cores, machine.crowd
        )
    return found


def memory(job: Job, ranks: int, node_ranks: int) -> dict[str, float]:
    """Bytes of weights, of sums of gradients and of slots that a rank holds, by `--shard`; sums that are whole are once
    on a node. See docs/sharding.md.

    Args:
        job: what is trained.
        ranks: how many there shall be.
        node_ranks: how many a node has.
    """
    of_node, part, slots = 1 / max(1, min(ranks, node_ranks)), 1 / ranks, job.slots
    held = {
        "none": 1 + of_node + slots,
        "state": 1 + of_node + slots * part,
        "gradients": 1 + part + slots * part,
        "weights": part + part + slots * part,
    }
    choices = next(one.choices for one in options() if one.name == "shard")
    return {choice: job.nbytes * held[choice] for choice in choices}


def compared() -> dict[str, tuple[str, str]]:
    """Strategies and the codec of each, by the name of both: those first that change least of what is computed."""
    ours = {f"{name} {codec}".strip(): (name, codec) for name in STRATEGIES for codec in ("", *STRATEGIES[name].codecs)}
    return {**ours, SERVER: (SERVER, "")}


def _step(
    strategy: str, settings: Settings, job: Job, compute: float, machine: Machine, ranks: int, codec: CodecCost | None,
    near: int = 1,
) -> float:  # fmt: skip
    if ranks == 1:
        return compute + job.after
    if strategy == SERVER:
        return step_cost.parameter_server(ranks, job.nbytes, compute, job.after, machine.far)
    near = min(near, ranks)
    servers = ranks - settings.training_ranks(ranks)
    step = PlannedStep(
        compute, job.after, job.nbytes, job.buckets, ranks, machine, codec, group_ranks=near, servers=servers
    )
    cost = STRATEGIES[strategy](settings).predict(step)
    return step_cost.crowded(cost.seconds, cost.own, job.work, cost.exchange_work, machine.cores, machine.crowd)


def _changes(name: str, settings: Settings) -> str:
    """What a strategy and its codec change of what is computed."""
    strategy, codec = compared()[name]
    return " and ".join(filter(None, (STRATEGIES[strategy](settings).changes, ROUNDED if codec else "")))


def best(seconds: Mapping[str, float]) -> str:
    """The strategy of matex_tf that changes least among those that are as good as the fastest."""
    ours = {name: step for name, step in seconds.items() if name != SERVER}
    fastest = min(ours.values())
    if ours[BASELINE] <= WORTH_IT * fastest:
        return BASELINE
    return next(name for name, step in ours.items() if step <= AS_GOOD * fastest)


def advice(row: Row, settings: Settings | None = None) -> str:
    """The best strategy of a number of ranks, in words: what is gained, and what it changes with these settings.

    Args:
        row: of the number of ranks.
        settings: those of the run; the defaults where it is None.
    """
    settings = Settings() if settings is None else settings
    ours = {name: step for name, step in row.seconds.items() if name != SERVER}
    text = f"best on {row.ranks} ranks: {row.best}"
    if row.best != BASELINE:
        gain = ours[BASELINE] / ours[row.best]
        changes = _changes(row.best, settings)
        told = f"{text}, {gain:.2f} times as fast a step as {BASELINE}; it changes the answer: {changes}"
        price = STRATEGIES[compared()[row.best][0]].price
        return f"{told}. An accuracy may take more steps: {price}" if price else told
    fastest = min(ours, key=lambda name: ours[name])
    gain = ours[BASELINE] / ours[fastest]
    if f"{gain:.2f}" == "1.00":
        return text
    return f"{text}; {fastest} would be {gain:.2f} times as fast, and changes the answer"


def show(
    job: Job, machine: Machine, rows: Sequence[Row], scaling: str, settings: Settings | None = None, full: bool = False
) -> None:
    """Print what was measured or given, the table, and the best.

    Args:
        job, machine: what is trained, and where.
        rows: one for each number of ranks.
        scaling: "weak" or "strong", see `predict`.
        settings: those of the run; the defaults where it is None.
        full: whether to print all codecs, and efficiencies, too.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    shown = [name for name in rows[0].seconds if full or not _left_out(name)]
    width = max(110, 40 + 9 * len(shown))  # the same in a file as on a narrow terminal
    console = Console(highlight=False, width=width)
    console.print(
        f"{job.name}: {1e3 * job.compute:.2f} ms to compute, {1e3 * job.update:.2f} ms to update, "
        f"{1e3 * job.between:.2f} ms between steps, "
        f"{job.nbytes / 1e6:.2f} MB of gradients in {job.buckets} bucket{'s' * (job.buckets > 1)}"
    )
    inside = f"; in a node of {machine.node_ranks} ranks {_rate(machine.node_beta)}" if machine.node_ranks > 1 else ""
    if machine.far_beta:
        inside += f"; between groups {_rate(machine.far_beta)}, {1e3 * machine.far_alpha:g} ms"
    between = f"links carry {_rate(machine.beta)} of data, {1e6 * machine.alpha:.1f} µs" if machine.beta else "no links"
    console.print(f"{between}{inside}; a rank adds up {_rate(machine.gamma)}")
    each = "each rank keeps its rows" if scaling == "weak" else "the global batch stays"
    parts: tuple[tuple[str, Callable[[Row, str], str]], ...] = (
        (f"milliseconds of a step ({each})", lambda row, name: _digits(1e3 * row.seconds[name])),
        ("efficiency, %: computing and updating, of the step", lambda row, name: f"{100 * row.efficiency[name]:.0f}"),
    )
    for title, cell in parts if full else parts[:1]:
        table = Table(box=box.SIMPLE_HEAD)
        for column in ("ranks", *shown, "best"):
            table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True)
        for row in rows:
            mark = " now" if row.ranks == job.ranks else ""
            table.add_row(f"{row.ranks:,}{mark}", *(cell(row, name) for name in shown), row.best)
        console.print(title)
        console.print(table)
    slots = f"{job.slots} slot{'s' * (job.slots != 1)}"
    table = Table("ranks", *rows[0].memory, box=box.SIMPLE_HEAD)
    for row in rows:
        held = {name: _digits(max(0.01, nbytes / 1e6)) for name, nbytes in row.memory.items()}
        table.add_row(f"{row.ranks:,}", *(f"{held[name]} / {_digits(1e3 * row.shards[name])}" for name in held))
    console.print(f"MB of a rank / ms of a step, by --shard: weights, sums of gradients, {slots} a weight")
    console.print(table)
    for row in rows:
        if row.ranks == job.ranks:
            console.print(advice(row, settings), soft_wrap=True)
    if full:
        console.print(f"{SERVER}: a parameter server on one of the ranks, to compare with; matex_tf has it in pieces")
    else:
        console.print("all codecs, and efficiencies: --full; all figures: --json FILE; a picture: --png FILE")


def _left_out(name: str) -> bool:
    """Whether a column is shown in full alone: int8 stands for the codecs, and a server hardly ever pays."""
    strategy, codec = compared()[name]
    return strategy in ("server", SERVER) or codec not in ("", "int8") or name == "elastic int8"


def draw(job: Job, rows: Sequence[Row], path: str) -> None:
    """Draw steps and efficiency by the number of ranks to a PNG.

    Args:
        job: what is trained.
        rows: one for each number of ranks.
        path: of the PNG, which is written anew.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    pyplot = plotting.pyplot()
    ranks = [row.ranks for row in rows]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    for name in rows[0].seconds:
        strategy = compared()[name][0]
        style = STRATEGIES[strategy].line if strategy in STRATEGIES else ":"
        left.plot(ranks, [1e3 * row.seconds[name] for row in rows], linestyle=style, marker=".", label=name)
        right.plot(ranks, [100 * row.efficiency[name] for row in rows], linestyle=style, marker=".", label=name)
    left.set_yscale("log")
    left.set_ylabel("milliseconds of a step")
    right.set_ylabel("efficiency, %")
    right.set_ylim(0, 105)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("ranks")
        axes.grid(alpha=0.3)
        axes.axvline(job.ranks, color="#bab0ac", linewidth=1)
    right.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle(f"{job.name}: {job.nbytes / 1e6:.3g} MB of gradients, {1e3 * job.compute:.3g} ms to compute")
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def _rate(seconds: float) -> str:
    """Seconds of a byte as bits per second."""
    return f"{8 / seconds / 1e9:.3g} Gbit/s" if seconds else "∞"


def _digits(number: float) -> str:
    """Three digits, but whole numbers whole."""
    return f"{number:,.{max(0, 2 - math.floor(math.log10(number)))}f}" if number < 1000 else f"{number:,.0f}"


def with_network(machine: Machine, alpha: float, beta: float, node_ranks: int) -> Machine:
    """The machine with other links between nodes; nothing is known of what an exchange costs there besides its
    messages.

    Args:
        machine: the machine.
        alpha: seconds of a message.
        beta: seconds of a byte.
        node_ranks: how many ranks each node has.
    """
    return replace(machine, alpha=alpha, beta=beta, sync=0.0, node_ranks=node_ranks)
