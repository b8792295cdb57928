"""What an exchange adds to a training step: this package's schedules and its peers, over lock step, in one run.

Lock step is the step of the same framework with the ranks meeting after it, and no bytes: what no exchange can be
faster than. Every way to exchange has a job or at least a model of its own; all are alive in one run, and each round
goes through all of them, so that what else the machine does falls on all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks import peers, tables
from benchmarks.launching import THREADS, free_ports, module
from benchmarks.step import models, report, xla
from benchmarks.step.turns import Job
from matex_tf.launch import mpirun_command

#: In every framework; mpirun binds each rank to one core where there are enough.
COMMON = {**THREADS, "TF_CPP_MIN_LOG_LEVEL": "3", "GLOO_SOCKET_IFNAME": "lo"}
CONFIGURATIONS = "chained 32,funneled 32,concurrent 32"


@dataclasses.dataclass(frozen=True)
class Kind:
    """A job to measure: its name, the framework it shows, the Python that runs it, and the module with arguments."""

    name: str
    framework: str
    python: Path
    module: str
    arguments: Sequence[str] = ()

    def start(self, model: str, batch: int, options: argparse.Namespace, directory: Path) -> Job:
        """Start its ranks; returns when they wait for their turn."""
        ranks, hosts = options.ranks, options.hosts
        # Of one version and with the same options everywhere; each environment's own, for its libraries.
        mpirun = dataclasses.replace(mpirun_command.find_mpirun(), path=str(self.python.parent / "mpirun"))
        line = mpirun_command.mpirun_line(
            mpirun, ranks, hosts, names=["STEP_TURNS", "STEP_COMPUTE", "STEP_XLA", *COMMON] if hosts else []
        )
        layers = options.layers and self.name == "matex"
        line += [str(self.python), *module(f"benchmarks.step.{self.module}", layers), model, str(batch)]
        line += self.arguments
        environ: Mapping[str, str] = {
            **COMMON,
            **os.environ,
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(peers.ROOT),
            "STEP_PORTS": ",".join(map(str, free_ports(ranks))),
            "STEP_COMPUTE": str(options.compute / 1e3),
            "STEP_XLA": "1" if options.xla else "",
        }
        # Workers of MultiWorkerMirroredStrategy take one that has no heartbeat for lost; without work they sleep.
        return Job(self.name, line, environ, directory, ranks, rests=self.name == "mirrored")


def kinds(configurations: Sequence[str], wanted: Sequence[str]) -> list[Kind]:
    """The jobs of a run.

    Args:
        configurations: this package's ways to exchange.
        wanted: peers, of horovod, mirrored, ddp.
    """
    today = "TF " + ".".join(importlib.metadata.version("tensorflow-cpu").split(".")[:2])
    own, tf2, torch = Path(sys.executable), peers.TENSORFLOW.python, peers.TORCH.python
    jobs = [
        Kind("lockstep", today, own, "matex", ["lockstep"]),
        Kind("matex", today, own, "matex", configurations),
    ]
    if {"horovod", "mirrored"} & set(wanted):
        jobs.append(Kind("tf2", "TF 2.15", tf2, "tf2", ["lockstep"]))
    for name in ("horovod", "mirrored"):
        if name in wanted:
            jobs.append(Kind(name, "TF 2.15", tf2, "tf2", [name]))
    if "ddp" in wanted:
        jobs.append(Kind("ddp", "PyTorch 2.13", torch, "ddp"))
    return jobs


def measure(model: str, options: argparse.Namespace, jobs: Sequence[Kind]) -> list[report.Figure]:
    """All jobs with one model."""
    batch = options.batch or models.BATCH[model]
    steps = options.steps or models.STEPS[model]
    # The ranks meet in a file of this directory, which should be memory; of emulated hosts each has its own /dev/shm.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") and not options.hosts else None
    with tempfile.TemporaryDirectory(prefix="step-", dir=memory) as folder, contextlib.ExitStack() as stack:
        running: list[tuple[Kind, Job]] = []
        for kind in jobs:
            job = kind.start(model, batch, options, Path(folder))
            stack.callback(job.end)
            running.append((kind, job))
            print(f"  {model}: {kind.name} is ready", file=sys.stderr, flush=True)
        measured = [
            (job, report.Seconds(kind.framework, name, [])) for kind, job in running for name in job.contestants
        ]
        for number in range(options.rounds + 1):
            for job, seconds in measured if number % 2 else measured[::-1]:
                mean = job.turn(seconds.exchange, steps)
                if number:  # the first round does not count
                    seconds.rounds.append(mean)
        weights = running[0][1].parameters()
        return report.figures(model, weights, options.ranks, batch, [seconds for _, seconds in measured])


def refuse_unknown(parser: argparse.ArgumentParser, given: Sequence[str], known: Iterable[str]) -> None:
    """End where a word that was given is not known."""
    if unknown := set(given) - set(known):
        parser.error(f"{', '.join(sorted(unknown))} is none of {', '.join(sorted(known))}")


def main() -> None:
    parser = tables.parser("step", __doc__, layers=True)
    parser.add_argument("-n", "--ranks", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--hosts", default="", help="as for matex-tf run, on hosts emulated by benchmarks/hosts.py")
    parser.add_argument(
        "--models",
        default="",
        help=f"of {','.join(models.BATCH)} (default small,lenet,mlp); with --xla of {','.join(xla.MODELS)} (all)",
    )
    parser.add_argument(
        "--configurations",
        default=CONFIGURATIONS,
        help="this package's schedule and megabytes of a bucket, one after the other, with commas between; 'meet' "
        f"is its step without a sum (default {CONFIGURATIONS})",
    )
    parser.add_argument(
        "--peers",
        default="horovod,mirrored,ddp",
        help="peers, made by scripts/bench peers where they are missing; none for none (default horovod,mirrored,ddp)",
    )
    parser.add_argument("--rounds", type=int, default=9, help="rounds that count (default 9), after one that does not")
    parser.add_argument("--steps", type=int, default=0, help="steps of a turn (default: the model's)")
    parser.add_argument("--batch", type=int, default=0, help="rows of a rank (default: the model's)")
    parser.add_argument("--compute", type=float, default=0, metavar="MS", help="emulate so much computing a step")
    parser.add_argument(
        "--xla",
        action="store_true",
        help="with jit_compile=True, beside Keras' own XLA step plus the exchange",
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw the figures to this file")
    parser.add_argument("--read", metavar="FILE,…", help="measure nothing: show and plot the JSON of earlier runs")
    options = tables.parse(parser)
    if options.read:
        figures = report.read(options.read.split(","))
        report.show(figures, "training steps of earlier runs, milliseconds", "")
        if options.plot:
            report.plot(figures, options.plot)
        return
    known = xla.MODELS if options.xla else models.BATCH
    options.models = options.models or ",".join(xla.MODELS if options.xla else ("small", "lenet", "mlp"))
    refuse_unknown(parser, options.models.split(","), known)
    if options.xla:
        xla.run(options, Kind)
        return
    wanted = [name for name in options.peers.split(",") if name not in ("", "none")]
    refuse_unknown(parser, wanted, ("horovod", "mirrored", "ddp"))
    if options.compute and wanted:
        parser.error("--compute is for this package alone: add --peers none")
    if {"horovod", "mirrored"} & set(wanted):
        peers.need(peers.TENSORFLOW)
    if "ddp" in wanted:
        peers.need(peers.TORCH)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # leaves through the end of its jobs
    jobs = kinds(options.configurations.split(","), wanted)
    figures = [figure for model in options.models.split(",") for figure in measure(model, options, jobs)]
    title = f"a training step on {options.ranks} ranks, milliseconds"
    report.show(figures, title, f"median of {options.rounds} rounds, jobs in turn")
    tables.keep([dataclasses.asdict(figure) for figure in figures])
    if options.plot:
        report.plot(figures, options.plot)


if __name__ == "__main__":
    main()
