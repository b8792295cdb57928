"""`matex-tf plan`: measure links and script where they are not given, and say which strategy pays on how many ranks."""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from matex_tf import settings as settings_module
from matex_tf.core.trace import BY_XLA
from matex_tf.core.world import World
from matex_tf.errors import MatexError, SettingError
from matex_tf.exchange.bucket import MEGABYTE
from matex_tf.features.plan import predict, probe
from matex_tf.features.plan.predict import Job
from matex_tf.job import launching
from matex_tf.job.command_line import SETTING_PAGES, Convert, Parser, one_of, text, whole
from matex_tf.job.target import Target
from matex_tf.launch import mpirun_command, mpirun_process, resources
from matex_tf.planning import timeline
from matex_tf.planning.cost_model import FRAMES, Machine
from matex_tf.planning.timeline import Step, settled
from matex_tf.settings import Settings
from matex_tf.storage import atomic_file

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_STEPS, _LEAST_STEPS = 20, 5


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf plan",
        "[-n N] [options] [--setting VALUE ...] SCRIPT [ARGS ...]\n"
        "       matex-tf plan --compute 120ms --parameters 25M --network 25Gbit,5us [-n N]",
        "Predict the time of a training step with each strategy, now and on 2, 4, … 4,096 ranks, and name the best. "
        "The first form trains SCRIPT for a few steps and measures the links between its ranks; what the script writes "
        "in these steps stays. The second form measures this machine's memory alone.",
        f"docs/planning.md; {SETTING_PAGES}",
    )
    now, what, more, out = "ranks now", "what is measured, and what is given instead", "more ranks", "output"
    launching.add_ranks(parser, now, whole(2))

    def add(title: str, flag: str, metavar: str, default: Any, line: str, convert: Convert = text) -> None:
        parser.add(title, flag, metavar=metavar, default=default, help=line, convert=convert)

    add(now, "--network", "RATE,TIME", None,
        "Instead of the measured links: Kbit, Mbit or Gbit a second, and the latency in ns, us or ms",
        _network)  # fmt: skip
    add(now, "--between", "RATE,TIME", None,
        "The links between groups of ranks, as for --network; a group's ranks share one",
        _network)  # fmt: skip
    add(now, "--per-group", "N", 1, "Ranks of a group, which train as one with local, elastic and server (default: 1)",
        whole(1))  # fmt: skip
    add(what, "--steps", "N", _STEPS,
        f"Steps that the script trains, of which the first three are not counted (default: {_STEPS})",
        whole(_LEAST_STEPS))  # fmt: skip
    add(what, "--compute", "TIME", 0.0, "Of a step, forward and backward, on one rank, without a script",
        _amount(_SECONDS, "120ms"))  # fmt: skip
    add(what, "--update", "TIME", 0.0, "To apply gradients (default: 0)", _amount(_SECONDS, "3ms"))
    add(what, "--parameters", "N", 0.0, "Of the model; K, M and G are powers of 1000", _amount(_COUNTS, "25M"))
    add(what, "--slots", "N", 2, "Of the optimizer, for each weight: 2 of Adam (default), 1 of momentum", whole(0))
    add(more, "--per-node", "N", 1, "Ranks of a node of --network (default: 1)", whole(1))
    parser.add(
        more, "--ranks", dest="most", metavar="N", default=predict.LARGEST, convert=whole(2),
        help="Predict for so many ranks too",
    )  # fmt: skip
    add(more, "--scaling", "weak|strong", "weak",
        "With more ranks, each keeps its rows and the global batch grows (weak, the default), or the global batch "
        "stays and each computes less (strong)", one_of("weak", "strong"))  # fmt: skip
    add(more, "--cores", "shared|spare|N/M", (True, 0, 1),
        "Computing takes all cores, so that an exchange takes its time from it (shared, the default), or leaves some, "
        "as accelerators do (spare), or each M ranks have N cores between them and accelerators compute (2/8)",
        _cores)  # fmt: skip
    add(out, "--png", "FILE", "", "Draw steps and efficiencies to a file (pip install 'matex_tf[plots]')")
    parser.add(out, "--full", action="store_true", help="Show every codec, a parameter server, and efficiencies")
    add(out, "--json", "FILE", "", "Write all figures to a file as well")
    add(out, "--trace", "FILE", "", argparse.SUPPRESS, _no_trace)
    parser.add_settings(leave_out=("steps", "trace"), shown=False)
    return parser


def _network(flag: str, given: str) -> tuple[float, float]:
    """Seconds of a message and of a byte."""
    rate, _, latency = given.partition(",")
    bits = _amount(_BITS, "25Gbit,5us")(flag, rate)
    return _amount(_SECONDS, "25Gbit,5us")(flag, latency), 8 / bits * FRAMES


def _cores(flag: str, given: str) -> tuple[bool, int, int]:
    """Whether computing takes all cores, and how many cores so many ranks have; see `Machine`."""
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", given)
    if given not in ("shared", "spare") and found is None:
        raise SettingError(f"{flag} is {given!r}; it can be shared, spare, or cores and ranks as in 2/8.")
    return (given == "shared", *(map(int, found.groups()) if found else (0, 1)))


def _no_trace(flag: str, given: str) -> str:
    raise SettingError(f"matex-tf plan takes no {flag}: it has one of its own.")


def _amount(units: dict[str, float], example: str) -> Convert:
    """A number of some unit."""

    def convert(flag: str, given: str) -> float:
        found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([a-zµ]*?)(?:/s)?", given.strip().lower())
        if found is None or found[2] not in units or float(found[1]) == 0:
            raise SettingError(f"{flag} has {given!r}; it must look like {example}.")
        return float(found[1]) * units[found[2]]

    return convert


def _check(asked: argparse.Namespace) -> None:
    """Refuse what does not go together.

    Raises:
        SettingError: half of a job without a script, a script beside it, or nothing at all.
    """
    given = bool(asked.compute) + bool(asked.parameters)
    if given == 1:
        raise SettingError("--compute and --parameters go together: what is missing cannot be measured alone.")
    if given and asked.rest:
        raise SettingError(f"{asked.rest[0]} is not run if --compute and --parameters are given: leave one out.")
    if given and asked.network is None:
        raise SettingError("without a script nothing is started that could measure links: give --network 25Gbit,5us.")
    if not given and not asked.rest:
        raise SettingError("there is no script to measure; or give --compute, --parameters and --network.")


def command(asked: argparse.Namespace) -> int:
    """Predict; returns the exit code."""
    _check(asked)
    settings = Settings.read(asked.flags)
    atomic_file.require(asked.json, "--json")
    atomic_file.require(asked.png, "--png")
    if asked.rest:
        target = Target.read(asked.rest)
        target.require()
        machine, ranks, linked = _measure_links(asked)
        name = target.name if target.is_module else os.path.basename(target.name)
        steps = measure_script(asked, target)
        if steps[0].what.endswith(BY_XLA):
            print(of_xla(steps, name, ranks))
            return 0
        job = _in_buckets(job_of(steps, name, ranks), settings)
    else:
        machine, ranks, linked = probe.measure(World()), max(asked.ranks, 2), False
        job = Job(f"{asked.parameters:,.0f} parameters", ranks, asked.compute, asked.update, 4 * asked.parameters)
        job = _in_buckets(job, settings)
        name = "matex-tf"
    if asked.network is not None:
        alpha, beta = asked.network
        machine = predict.with_network(machine, alpha, beta, asked.per_node)
    busy, cores, crowd = asked.cores
    machine = replace(machine, busy=busy, cores=cores, crowd=crowd)
    if asked.between is not None:
        alpha, beta = asked.between
        machine = replace(machine, far_alpha=alpha, far_beta=beta)
    job = replace(job, slots=asked.slots)
    known = linked or asked.network is not None
    rows = [
        predict.predict(job, machine, size, asked.scaling, settings, asked.per_group)
        for size in predict.sizes(job.ranks, asked.most, 0 if known else job.ranks)
    ]
    predict.show(job, machine, rows, asked.scaling, settings, asked.full)
    if not known:
        print("all ranks are on one node, so there was no link to measure; for more ranks give --network 25Gbit,5us")
    if asked.json:
        found = {"job": asdict(job), "machine": asdict(machine), "scaling": asked.scaling}
        atomic_file.put_json(asked.json, {**found, "rows": [asdict(row) for row in rows]}, indent=1)
    if asked.png:
        predict.draw(job, rows, asked.png)
        print(f"drawn: {asked.png}")
    return 0


def _measure_links(asked: argparse.Namespace) -> tuple[Machine, int, bool]:
    """The machine, the number of ranks, and whether they are on more than one node."""
    with launching.folder(asked.hosts, "plan") as folder:
        path = os.path.join(folder, "links.json")
        _run(asked, ["-m", "matex_tf.features.plan.probe", path], "measuring the links")
        machine, nodes = probe.read(path)
    return machine, sum(nodes), len(nodes) > 1


def measure_script(asked: argparse.Namespace, target: Target) -> list[Step]:
    """Train the script for a few steps, and read its timeline: the steps of all ranks.

    Args:
        asked: the command line: how many steps, on how many ranks, and their settings.
        target: the script.

    Raises:
        MatexError: it failed.
        DataError: it made no step.
    """
    with launching.folder(asked.hosts, "plan") as folder:
        path = os.path.join(folder, "steps.json")
        words = ["-m", "matex_tf", "--trace", path, "--steps", str(asked.steps)]
        _run(asked, [*words, *settings_module.as_flags(asked.flags), *target.words], "the script")
        return timeline.read(path)


def of_xla(steps: Sequence[Step], name: str, ranks: int) -> str:
    """What is to be said of a script of Keras on JAX: the exchange is part of what XLA compiles.

    Args:
        steps: of all ranks.
        name: of the script.
        ranks: how many there are.
    """
    by_rank = [settled([step for step in steps if step.rank == rank]) for rank in range(ranks)]
    longest = statistics.median(max(step.length for step in same) for same in zip(*by_rank, strict=False))
    return (
        f"a step of {name} takes {longest / 1e3:.1f} ms on {ranks} ranks, with the exchange that XLA makes in it. "
        "Strategies, codecs and --shard are for Keras on TensorFlow, so nothing is predicted for them (docs/jax.md)"
    )


def job_of(steps: Sequence[Step], name: str, ranks: int) -> Job:
    """The job that these steps of all ranks are of. A step takes as long as that of the slowest rank.

    Args:
        steps: of all ranks.
        name: of the script.
        ranks: how many there are.

    Raises:
        MatexError: nothing was exchanged in them.
    """
    by_rank = [settled([step for step in steps if step.rank == rank]) for rank in range(ranks)]
    together = list(zip(*by_rank, strict=False))
    if not together or not max(step.nbytes for step in together[-1]):
        raise MatexError(f"{name} exchanged no gradients in its first steps, so there is nothing to plan.")

    def slowest(part: str) -> float:
        return 1e-6 * statistics.median(max(step.parts.get(part, 0.0) for step in same) for same in together)

    gaps = [[max(0.0, step.begin - last.begin - last.length) for last, step in pairwise(own)] for own in by_rank]
    between = 1e-6 * statistics.median([*map(max, zip(*gaps, strict=False))] or [0.0])
    nbytes = statistics.median(max(step.nbytes for step in same) for same in together)
    work = 1e-6 * statistics.median(statistics.fmean(step.work for step in same) for same in together)
    return Job(name, ranks, slowest("compute"), slowest("apply"), nbytes, work=work, between=between)


def _in_buckets(job: Job, settings: Settings) -> Job:
    buckets = -(-int(job.nbytes) // (settings.bucket_mb * MEGABYTE))
    return replace(job, buckets=max(1, buckets))


def _run(asked: argparse.Namespace, words: Sequence[str], what: str) -> None:
    ranks = asked.ranks or max(2, resources.default_ranks(asked.hosts))
    line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), ranks, asked.hosts, 0)
    code = mpirun_process.run(
        [*line, sys.executable, *words], local=not asked.hosts and not resources.in_batch_system()
    )
    if code:
        raise MatexError(f"{what} ended with exit code {code}, so there is nothing to plan with.")
