"""`matex-tf plan`: measure links and script where they are not given, and say which strategy pays on how many ranks."""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

from matex_tf import settings as settings_module
from matex_tf.cli import trace as timeline
from matex_tf.core.world import World
from matex_tf.errors import MatexError, SettingError
from matex_tf.exchange.bucket_plan import MEGABYTE
from matex_tf.job import suggestions
from matex_tf.job.run import Target
from matex_tf.launch import mpirun_command
from matex_tf.planning import predict, probe
from matex_tf.planning.cost_model import Machine
from matex_tf.planning.predict import Job
from matex_tf.settings import Settings
from matex_tf.storage import atomic_file

USAGE = """usage: matex-tf plan [-n N] [--hosts H1:4,H2:4] [--network 25Gbit,5us] [--setting value] SCRIPT [ARGS ...]
       matex-tf plan --compute 120ms --parameters 25M --network 25Gbit,5us [-n N]

Predict the time of a training step with each strategy, now and on 2, 4, … 4,096 ranks, and name the best.

The first form trains SCRIPT for a few steps to see what they take, and measures the links between its ranks. Nothing of
the script is undone: what it writes in its first steps is written. The second form measures nothing but this machine's
memory.

  -n N, --hosts         as for matex-tf run; how many ranks there are now
  --network RATE,TIME   instead of the measured links: Kbit, Mbit or Gbit a second, and the latency in ns, us or ms
  --per-node N          ranks of a node of that network. Default: 1
  --ranks N             predict for so many ranks too
  --scaling weak|strong whether with more ranks each keeps its rows, so that the global batch grows (weak, the default),
                        or the global batch stays, so that each computes less
  --cores shared|spare|N/M  whether computing takes all cores, so that an exchange takes its time from it (shared, the
                        default), or leaves some, as accelerators do (spare), or each M ranks have N cores between them
                        and accelerators compute (2/8)
  --steps N             steps that the script trains, of which the first three are not counted. Default: 20
  --compute TIME        of a step, forward and backward, on one rank, instead of running a script
  --update TIME         to apply gradients. Default: 0
  --parameters N        of the model; K, M and G are powers of 1000
  --png FILE            where to draw it. Default: NAME.plan.png, for the script's name
  --json FILE           write all figures to a file as well"""

_FLAGS = (
    *("-n", "--hosts", "--network", "--per-node", "--ranks", "--scaling", "--compute", "--update"),
    *("--parameters", "--cores", "--png", "--json"),
)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_STEPS, _LEAST_STEPS = 20, 5


@dataclass
class Asked:
    """What the command line says.

    Attributes:
        flags: settings, by name.
        words: the script and its arguments; empty where compute and parameters are given.
        network: alpha and beta; None where links are to be measured.
        busy, cores, crowd: see `Machine`.
    """

    flags: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    ranks: int = 0
    hosts: str = ""
    network: tuple[float, float] | None = None
    per_node: int = 1
    most: int = predict.LARGEST
    scaling: str = "weak"
    steps: int = _STEPS
    compute: float = 0.0
    update: float = 0.0
    parameters: float = 0.0
    busy: bool = True
    cores: int = 0
    crowd: int = 1
    png: str = ""
    json: str = ""

    @classmethod
    def read(cls, words: Sequence[str]) -> Asked:
        """From the words behind `matex-tf plan`.

        Raises:
            SettingError: they cannot be understood, or do not go together.
        """
        asked, rest = cls(), list(words)
        while rest and rest[0].startswith("-") and rest[0] != "-m":
            found, behind = settings_module.split_flags(rest)
            if found:
                if "trace" in found:
                    raise SettingError("matex-tf plan takes no --trace: it has one of its own.")
                if "steps" in found:
                    asked._take("--steps", found.pop("steps"))
                asked.flags.update(found)
                rest = behind
                continue
            flag, equals, value = rest.pop(0).partition("=")
            if flag not in _FLAGS:
                near = suggestions.nearest(flag, [*_FLAGS, *suggestions.settings_flags(), "--help"])
                raise SettingError(f"matex-tf plan has no flag {flag}{near}; matex-tf plan --help lists them.")
            if not equals:
                if not rest:
                    raise SettingError(f"{flag} needs a value.")
                value = rest.pop(0)
            asked._take(flag, value)
        asked.words = rest
        given = bool(asked.compute) + bool(asked.parameters)
        if given == 1:
            raise SettingError("--compute and --parameters go together: what is missing cannot be measured alone.")
        if given and asked.words:
            raise SettingError(
                f"{asked.words[0]} is not run where --compute and --parameters are given: leave one out."
            )
        if given and asked.network is None:
            raise SettingError(
                "without a script nothing is started that could measure links: give --network 25Gbit,5us."
            )
        if not given and not asked.words:
            raise SettingError("there is no script to measure; or give --compute, --parameters and --network.")
        return asked

    def _take(self, flag: str, value: str) -> None:
        if flag == "-n":
            self.ranks = int(_whole(flag, value, 2))
        elif flag == "--hosts":
            mpirun_command.slots(value)
            self.hosts = value
        elif flag == "--network":
            rate, _, latency = value.partition(",")
            bits = _amount(flag, rate, _BITS, "25Gbit,5us")
            self.network = _amount(flag, latency, _SECONDS, "25Gbit,5us"), 8 / bits
        elif flag == "--scaling":
            if value not in ("weak", "strong"):
                raise SettingError(f"{flag} is {value!r}; it can be weak or strong.")
            self.scaling = value
        elif flag == "--cores":
            found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", value)
            if value not in ("shared", "spare") and found is None:
                raise SettingError(f"{flag} is {value!r}; it can be shared, spare, or cores and ranks as in 2/8.")
            self.busy = value == "shared"
            self.cores, self.crowd = map(int, found.groups()) if found else (0, 1)
        elif flag == "--per-node":
            self.per_node = _whole(flag, value, 1)
        elif flag == "--ranks":
            self.most = _whole(flag, value, 2)
        elif flag == "--steps":
            self.steps = _whole(flag, value, _LEAST_STEPS)
        elif flag == "--compute":
            self.compute = _amount(flag, value, _SECONDS, "120ms")
        elif flag == "--update":
            self.update = _amount(flag, value, _SECONDS, "3ms")
        elif flag == "--parameters":
            self.parameters = _amount(flag, value, _COUNTS, "25M")
        else:
            setattr(self, flag.removeprefix("--"), value)


def _whole(flag: str, value: str, least: int) -> int:
    if not value.isdigit() or int(value) < least:
        raise SettingError(f"{flag} is {value!r}; it must be a whole number, {least} or more.")
    return int(value)


def _amount(flag: str, text: str, units: dict[str, float], example: str) -> float:
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([a-zµ]*?)(?:/s)?", text.strip().lower())
    if found is None or found[2] not in units or float(found[1]) == 0:
        raise SettingError(f"{flag} has {text!r}; it must look like {example}.")
    return float(found[1]) * units[found[2]]


def command(words: Sequence[str]) -> int:
    """`matex-tf plan`."""
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    asked = Asked.read(words)
    settings = Settings.read(asked.flags)
    atomic_file.require(asked.json, "--json")
    atomic_file.require(asked.png, "--png")
    if asked.words:
        target = Target.read(asked.words)
        if not target.is_module and not os.path.exists(target.name):
            raise SettingError(f"there is no script {target.name}.")
        machine, ranks, linked = _measure_links(asked)
        name = target.name if target.is_module else os.path.basename(target.name)
        job = measure_script(asked, settings, target, ranks, name)
    else:
        machine, ranks, linked = probe.measure(World()), max(asked.ranks, 2), False
        job = Job(f"{asked.parameters:,.0f} parameters", ranks, asked.compute, asked.update, 4 * asked.parameters)
        job = _in_buckets(job, settings)
        name = "matex-tf"
    if asked.network is not None:
        machine = predict.with_network(machine, *asked.network, asked.per_node)
    machine = replace(machine, busy=asked.busy, cores=asked.cores, crowd=asked.crowd)
    known = linked or asked.network is not None
    rows = [
        predict.predict(job, machine, size, asked.scaling)
        for size in predict.sizes(job.ranks, asked.most, 0 if known else job.ranks)
    ]
    predict.show(job, machine, rows, asked.scaling)
    if not known:
        print("all ranks are on one node, so there was no link to measure; for more ranks give --network 25Gbit,5us")
    if asked.json:
        found = {"job": asdict(job), "machine": asdict(machine), "scaling": asked.scaling}
        atomic_file.put_json(asked.json, {**found, "rows": [asdict(row) for row in rows]}, indent=1)
    png = asked.png or f"{os.path.splitext(name)[0]}.plan.png"
    predict.draw(job, rows, png)
    print(f"drawn: {png}")
    return 0


def _measure_links(asked: Asked) -> tuple[Machine, int, bool]:
    """The machine, the number of ranks, and whether they are on more than one node."""
    with _folder(asked.hosts) as folder:
        path = os.path.join(folder, "links.json")
        _run(asked, ["-m", "matex_tf.planning.probe", path], "measuring the links")
        machine, nodes = probe.read(path)
    return machine, sum(nodes), len(nodes) > 1


def measure_script(asked: Asked, settings: Settings, target: Target, ranks: int, name: str) -> Job:
    """Train the script for a few steps, and read from its timeline what they took."""
    with _folder(asked.hosts) as folder:
        path = os.path.join(folder, "steps.json")
        words = ["-m", "matex_tf", "--trace", path, "--steps", str(asked.steps)]
        for setting, value in asked.flags.items():
            words += [settings_module.flag_name(setting), value]
        words += [*(["-m"] if target.is_module else []), target.name, *target.arguments]
        _run(asked, words, "the script")
        steps = timeline.read(path)
    return _in_buckets(job_of(steps, name, ranks), settings)


def job_of(steps: Sequence[timeline.Step], name: str, ranks: int) -> Job:
    """The job that these steps of all ranks are of. A step takes as long as that of the slowest rank.

    Raises:
        MatexError: nothing was exchanged in them.
    """
    by_rank = [timeline.settled([step for step in steps if step.rank == rank]) for rank in range(ranks)]
    together = list(zip(*by_rank, strict=False))
    if not together or not max(step.nbytes for step in together[-1]):
        raise MatexError(f"{name} exchanged no gradients in its first steps, so there is nothing to plan.")

    def slowest(part: str) -> float:
        return 1e-6 * statistics.median(max(step.parts.get(part, 0.0) for step in same) for same in together)

    nbytes = statistics.median(max(step.nbytes for step in same) for same in together)
    work = 1e-6 * statistics.median(statistics.fmean(step.work for step in same) for same in together)
    return Job(name, ranks, slowest("compute"), slowest("apply"), nbytes, work=work)


def _in_buckets(job: Job, settings: Settings) -> Job:
    buckets = -(-int(job.nbytes) // (settings.bucket_mb * MEGABYTE))
    return replace(job, buckets=max(1, buckets))


def _run(asked: Asked, words: Sequence[str], what: str) -> None:
    ranks = asked.ranks or max(2, mpirun_command.default_ranks(asked.hosts))
    line = mpirun_command.mpirun_line(mpirun_command.find_mpirun(), ranks, asked.hosts, 0)
    code = mpirun_command.run(
        [*line, sys.executable, *words], local=not asked.hosts and not mpirun_command.in_batch_system()
    )
    if code:
        raise MatexError(f"{what} ended with exit code {code}, so there is nothing to plan with.")


@contextmanager
def _folder(hosts: str) -> Iterator[str]:
    """A directory for what rank 0 writes; where it may be on another host, here, which hosts must share."""
    elsewhere = bool(hosts) or mpirun_command.in_batch_system()
    with tempfile.TemporaryDirectory(prefix=".matex-plan-", dir=os.getcwd() if elsewhere else None) as folder:
        yield folder
