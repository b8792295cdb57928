"""The settings of the core. Each strategy and each feature declares its own in its file.

A setting is given as a flag (``--batch per-rank``), as an environment variable (``MATEX_BATCH=per-rank``), or not
at all; a flag wins over the environment, the environment over the default. The command lines and their help, and the
tables of docs/settings.md, are made from what is declared here.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from matex_tf.errors import MatexError
from matex_tf.features import registry
from matex_tf.settings import conflicts
from matex_tf.settings.declaration import Option, flag_name, option
from matex_tf.settings.strategy_registry import STRATEGIES

Declared = TypeVar("Declared")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a run. Frozen: a run cannot change its own settings.

    Attributes:
        declared: the options of strategies and features that are not all the defaults; `of` finds them.

    Raises:
        SettingError: from `read`, for a value that a setting cannot have.
    """

    batch: str = option(
        "global",
        "What the script's batch size means. `global`: each rank computes its part of every batch. `per-rank`: each "
        "rank takes whole batches, and the global batch grows with the number of ranks.",
        choices=("global", "per-rank"),
        group="data",
        common=True,
    )
    data: str = option(
        "exact",
        "How work on tf.data pipelines is split. `exact`: every rank does the maps for its rows of each batch, and "
        "all that comes before them. `whole`: every rank runs the whole pipeline and keeps its rows of each batch. "
        "Both give the batches of one rank. `source`: each rank takes every p-th element before the first `map` or "
        "`batch`, and does 1/p of the work after that. A batch may then hold other rows than on one rank.",
        choices=("exact", "whole", "source"),
        group="data",
        common=True,
    )
    generators: str = option(
        "auto",
        "Which ranks run the code of a Python generator that `fit`, `evaluate` or `predict` gets, also through "
        "`from_generator`. `rank`: every rank. `node`: the first rank of each node, from which the others get their "
        "rows. What the code draws or counts is known on that rank alone. `auto`: as `node`, if making the first two "
        "batches has drawn and changed nothing that other code can see; else as `rank`. The batches of a `PyDataset` "
        "are made by the ranks in turn. There `node` leaves out this look at the first ones.",
        choices=("auto", "rank", "node"),
        group="data",
    )
    rows: str = option(
        "auto",
        "Whose rows the data hold. `auto`: the ranks compare them. `shared`: every rank has all rows, and each batch "
        "is split, whatever differs. `own`: each rank has its own rows, and together they are the batch.",
        choices=("auto", "shared", "own"),
        group="data",
    )
    batch_norm: str = option(
        "batch",
        "Over which rows BatchNormalization takes mean and variance in training. `batch`: those of the whole batch, as "
        "on one rank; each layer takes one small sum over the ranks forward and one backward. `rank`: this rank's own "
        "rows, which is faster and another training; moving statistics are averaged after each epoch.",
        choices=("batch", "rank"),
        group="data",
    )
    check: str = option(
        "auto",
        "Whether to compare the gradient of the first training step with that of one rank. If they differ, a line "
        "names it. `auto`: for models and loops with code of your own, if the step has no effect such as printing. "
        "Their weights may have 64 MB, and a batch 4096 rows or 64 MB. `on`: for all; a line names what prevents it. "
        "`off`: for none.",
        choices=("auto", "on", "off"),
        group="data",
    )
    loss: str = option(
        "mean",
        "What the loss of a script's own `train_step`, `compute_loss` or loop is over the rows of a batch. `mean`: a "
        "mean, or one with `matex_tf.all_rows`. `sum`: a sum, such as `tf.reduce_sum`. Losses that Keras calls are "
        "known by themselves.",
        choices=("mean", "sum"),
        group="data",
    )
    shard_loops: bool = option(
        True,
        "Whether to split batched tf.data pipelines that a script iterates itself, and arrays that it feeds to a "
        "session. `off` is for scripts that divide their data themselves: each rank's batch is its own, and "
        "gradients are averaged with equal weights.",
        kind="switch",
        group="data",
    )
    require_sharing: bool = option(
        False,
        "Whether a job of several ranks ends with an error if its work is not split. It ends at the first such "
        "training step, or at its end if nothing was trained. With `off` a line at the end names the reason.",
        kind="switch",
        group="data",
    )
    files: str = option(
        "auto",
        "Who changes files and starts programs for a script. `once`: one of the ranks that share a file system, "
        "while the others wait. `private`: each rank, in a layer of its own over the file system. The first rank's "
        "layer counts; if there can be none, as `once`. `auto`: `private` if the machine allows it and the script "
        "shares no files among its ranks on purpose, else `once`. `every-rank`: each rank.",
        choices=("auto", "once", "private", "every-rank"),
        group="files and output",
        common=True,
    )
    env: str = option(
        "hide",
        "What the script finds of the launcher in its environment (`OMPI_COMM_WORLD_RANK`, `PMIX_…`, "
        "`SLURM_PROCID`). `hide`: nothing, as libraries would take it for one process of several. A script that "
        "names such a variable, or imports mpi4py or Horovod, finds all. `keep`: all.",
        choices=("hide", "keep"),
        group="files and output",
    )
    output: str = option(
        "first",
        "Whose output to show: `first`, `all`, or the name of a directory. `first`: that of rank 0. `all`: that of "
        "every rank, each line after the number of its rank. A directory: each rank writes `rank.R.log` there.",
        group="files and output",
        common=True,
    )
    threads: int = option(
        0,
        "Cores for each rank. Sets TensorFlow's intra- and inter-op threads and OMP_NUM_THREADS unless they are set "
        "already. 0 divides the cores of a node among its ranks.",
        kind="count",
        group="the run",
        common=True,
    )
    reproducible: int = option(
        0,
        "The number P of virtual ranks. Every batch is cut into P parts, and the sums of the parts have a fixed "
        "order. So any number of ranks up to P ends with the same bits. TensorFlow's ops then run in one thread "
        "each, unless `threads` says how many. 0 for none.",
        kind="count",
        group="the run",
    )
    seed: int = option(
        -1,
        "The seed that Python, NumPy, TensorFlow and Keras get on every rank before the script starts. The script's "
        "own seeds come later and win. With -1 rank 0 draws one.",
        kind="integer",
        group="the run",
        common=True,
    )
    schedule: str = option(
        "chained",
        "When exchanges run. `chained`: one after the other, in the threads that compute. `funneled`: in a thread of "
        "their own, while backward continues. `concurrent`: in several threads.",
        choices=("chained", "funneled", "concurrent"),
        group="exchange",
        common=True,
    )
    partitioner: bool = option(
        True,
        "Rebuild the graph of a step for a rank's rows, and do not patch Keras' parts. What is traced has the answer "
        "of one rank, whatever it does with the rows of a batch (docs/how-it-works.md).",
        kind="switch",
        group="the run",
    )
    shard: str = option(
        "none",
        "What lies in parts on the ranks, so that each needs less memory. `none`: nothing. `state`: each rank holds "
        "1/p of the optimizer's slots, and computes 1/p of an update (ZeRO-1). `gradients`: it also keeps 1/p of their "
        "sums alone (ZeRO-2). `weights`: it also keeps 1/p of the weights, and gathers each where it is used (ZeRO-3). "
        "The answer is the same (docs/sharding.md).",
        choices=("none", "state", "gradients", "weights"),
        group="the run",
    )
    shard_copies: int = option(
        1,
        "With `--shard` and `--faults shrink`: how many other ranks keep a copy of a rank's parts, so that nothing is "
        "lost if it dies. As many ranks as this may die at once (docs/sharding.md).",
        kind="count",
        group="faults",
    )
    strategy: str = option(
        "sync",
        "What ranks exchange, with whom and when.",  # the registry of strategies adds the choices, see `options`
        group="strategy",
    )
    transport: str = option(
        "mpi",
        "What adds up the gradients of all ranks. `mpi`: memory that the ranks of a node share, and MPI between nodes. "
        "`horovod`: an installed Horovod, in the graph of the step; all else is as with `mpi`.",
        choices=("mpi", "horovod"),
        group="exchange",
    )
    codec: str = option(
        "none",
        "How gradients are encoded between nodes, and with `gossip` weights between any two ranks. `none`: unchanged. "
        "`bf16`: the upper half of each float32. `int8`: 8 bits each, and a scale for 512 of them. "
        "`int4`: 4 bits each, and a scale for 128 of them, for the seldom sums of `--strategy local`.",
        choices=("none", "bf16", "int8", "int4"),
        group="exchange",
    )
    error_feedback: bool = option(
        False,
        "Whether to keep the rounding error of a codec and add it to the gradient of the next step. With `gossip` it "
        "is added to the weights that are sent next.",
        kind="switch",
        group="exchange",
    )
    bucket_mb: int = option(
        32,
        "Megabytes of a bucket: gradients that travel together. Smaller buckets start sooner, while backward "
        "continues; larger ones need fewer messages. `pipe` has one bucket for each dtype.",
        kind="positive",
        group="exchange",
    )
    faults: str = option(
        "abort",
        "What happens when a rank dies. `abort`: all others end at once. `shrink`: the others continue with all rows "
        "(needs Open MPI 5, or another MPI with ULFM).",
        choices=("abort", "shrink"),
        group="faults",
    )
    min_ranks: int = option(
        1,
        "With `--faults shrink`: the job ends if fewer ranks than this are left.",
        kind="count",
        group="faults",
    )
    max_ranks: int = option(
        0,
        "With `--faults shrink`: no rank comes (`matex-tf join`) to a job that has so many. 0 for no such limit. "
        "`matex-tf run --ranks 2:8` sets this and the two above.",
        kind="count",
        group="faults",
    )
    stall_seconds: int = option(
        60,
        "After waiting so many seconds for a rank that is alive, a line says which rank is missing, and from what. 0 "
        "for never.",
        kind="count",
        group="faults",
    )
    stall_abort_seconds: int = option(
        0,
        "After waiting so many seconds for a rank that is alive, it counts as dead; `faults` says what happens then. "
        "0 for never: nobody can tell a rank that is stuck from one that has much to do. With `shrink` on several "
        "hosts a silent host counts as dead after this time, or after 30 seconds.",
        kind="count",
        group="faults",
    )
    csv_line_mb: int = option(
        64,
        "Megabytes of the longest line, and of the longest row, of a CSV file that `DataSet` reads. A longer one is an "
        "error before it takes memory.",
        kind="positive",
        group="data",
    )
    unpack_ratio: int = option(
        100,
        "For `DataSet`: how many times its own length a packed file (gzip), or a packed array of an .npz file, may "
        "unpack to. One that unpacks to more than this, and to more than 256 MB, is an error before it fills memory or "
        "disk.",
        kind="positive",
        group="data",
    )
    steps: int = option(
        0,
        "End the script after so many training steps, as `sys.exit()` would, to measure a few. With 0 it trains to "
        "its own end.",
        kind="count",
        group="the run",
        common=True,
    )
    trace: str = option(
        "",
        "A file for a timeline of the run, in the format of Chrome's trace viewer; `matex-tf trace` summarizes it. "
        "Empty for none.",
        kind="file",
        group="files and output",
        of_job=True,
        common=True,
    )
    progress: str = option(
        "auto",
        "Whether to say how far a training is. That is: epoch, steps and rows a second, the part of the time that "
        "exchange and input take, ranks alive, time left. `auto`: a line that stays in its place on a terminal, if "
        "Keras draws no progress bar there. Elsewhere a line of the log at most every 10 s. `on`: beside a progress "
        "bar too.",
        choices=("auto", "on", "off"),
        group="files and output",
        common=True,
    )
    watch: bool = option(
        True,
        "Whether ranks report once a second how far they are, for `--progress` and for those who watch. They "
        "do so by TCP to the first of them, with a token; on one machine through its loopback.",
        kind="switch",
        group="files and output",
        common=True,
    )
    watch_dir: str = option(
        "",
        "A directory in which those who watch find the job. Empty for `$XDG_STATE_HOME`, or `~/.local/state`.",
        kind="dir",
        group="files and output",
    )
    notes: bool = option(
        True,
        "Whether rank 0 prints the lines that start with `matex_tf:`.",
        kind="switch",
        group="files and output",
        common=True,
    )
    traceback: str = option(
        "short",
        "How an error of the script is shown: `short` leaves out frames of matex_tf, `full` shows them.",
        choices=("short", "full"),
        group="files and output",
    )
    declared: tuple[Any, ...] = ()

    @classmethod
    def read(cls, flags: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
        """Settings from flags and environment.

        Args:
            flags: setting name to text, as given on a command line.
            environ: the environment; `os.environ` where it is None.

        Raises:
            SettingError: a value that a setting cannot have, or settings that do not go together.
        """
        environ = os.environ if environ is None else environ
        values = {}
        for one in options():
            if flags and one.name in flags:
                values[one.name] = one.read(flags[one.name], one.flag)
            elif one.variable in environ:
                values[one.name] = one.read(environ[one.variable], one.variable)
        settings = cls().changed(**values)
        settings.refuse_conflicts()
        return settings

    def of(self, declared: type[Declared]) -> Declared:
        """The options that a strategy declares, with the values of this run.

        Args:
            declared: their dataclass, as in `settings.of(PipeOptions).pipe_width`.
        """
        return next((one for one in self.declared if type(one) is declared), None) or declared()

    def changed(self, **values: Any) -> Settings:
        """A copy of the settings with other values of these; options of strategies and features as well.

        Raises:
            TypeError: there is no such setting.
        """
        groups = []
        for declared in declarations().values():
            own = {field.name: values.pop(field.name) for field in dataclasses.fields(declared) if field.name in values}
            group = dataclasses.replace(self.of(declared), **own)
            groups += [group] if group != declared() else []
        return dataclasses.replace(self, **values, declared=tuple(groups))

    def call_each(self, method: str, *given: Any) -> None:
        """Call a method of the options that strategies and features declare, of those that have it and are used."""
        for declared in self.declared:
            getattr(declared, method, lambda *_: None)(*given)

    def passed_through(self, method: str, value: Any) -> Any:
        """What the options that strategies and features declare make of a value, one after the other.

        Args:
            method: the name of theirs that makes a value of a value; those that do not have it are left out.
            value: what the first of them gets.

        Returns:
            What the last gives; None as soon as one gives that.
        """
        for declared in self.declared:
            if value is not None:
                value = getattr(declared, method, lambda same: same)(value)
        return value

    def values(self) -> dict[str, Any]:
        """Every setting by its name, options of strategies as well."""
        groups = [self, *(self.of(declared) for declared in declarations().values())]
        return {one.name: getattr(group, one.name) for group in groups for one in Option.of(type(group))}

    @property
    def changes_one_rank(self) -> bool:
        """Whether a script on one rank does other than Python would have it do."""
        of_features = any(getattr(one, "changes_one_rank", False) for one in self.declared)
        return self.reproducible > 0 or of_features

    def of_one_rank(self) -> list[str]:
        """The names of the settings of features that change what one rank computes, without files that it writes."""
        declared = [type(one) for one in self.declared if getattr(one, "changes_one_rank", False)]
        return [one.name for kind in declared for one in Option.of(kind) if one.kind != "file"]

    @property
    def shares_loops(self) -> bool:
        """Whether loops of the script's own are shared out; with virtual ranks every rank walks over whole batches."""
        return self.shard_loops and not self.reproducible

    @property
    def is_guest(self) -> bool:
        """Whether these ranks take part in the training of another job, which writes its files itself."""
        return any(getattr(one, "is_guest", False) for one in self.declared)

    def training_ranks(self, ranks: int) -> int:
        """How many of so many ranks train; a feature may have others do something else.

        Raises:
            SettingError: none.
        """
        training: int = self.passed_through("training_ranks", ranks)
        return training

    def refuse_conflicts(self, ranks: int = 0) -> None:
        """Refuse settings that do not go together.

        Args:
            ranks: how many train; 0 where nobody knows yet.

        Raises:
            SettingError: what does not go together, and what to take instead.
        """
        strategy = STRATEGIES[self.strategy]
        strategy.check(self, ranks)
        conflicts.check(self, ranks)
        for declared in declarations().values():
            if hasattr(declared, "check"):
                self.of(declared).check(self, ranks)

    def as_environment(self) -> dict[str, str]:
        """The settings that differ from their defaults, as environment variables."""
        values = self.values()
        return {one.variable: one.as_text(values[one.name]) for one in options() if values[one.name] != one.default}


def declarations() -> dict[str, type[Any]]:
    """The dataclasses of settings that strategies and features declare, each once, by the topic of its settings."""
    found: dict[str, type[Any]] = {}
    for name in STRATEGIES:
        declared = STRATEGIES[name].Options
        if declared not in found.values() and dataclasses.fields(declared):
            found[f"strategy {name}"] = declared
    for name, feature in registry.found().items():
        if feature.settings:
            module, _, cls = feature.settings.partition(":")
            found[name] = getattr(importlib.import_module(module), cls)
    return found


def options() -> list[Option]:
    """Every setting: those of all runs, then those of each strategy and of each feature.

    Raises:
        MatexError: two of them have the same name.
    """
    choices = {
        "strategy": {name: f"{one.text}." for name, one in STRATEGIES.items()},
        "faults": {name: one.text for name, one in registry.faults().items()},
    }
    every = [one.with_choices(choices.get(one.name, {})) for one in Option.of(Settings)]
    every += [one for topic, declared in declarations().items() for one in Option.of(declared, topic)]
    topics: dict[str, str] = {}
    for one in every:
        if one.name in topics:
            raise MatexError(f"two settings are called {one.flag}: of {topics[one.name]}, and of {one.group}.")
        topics[one.name] = one.group
    return every


def as_flags(given: Mapping[str, str]) -> list[str]:
    """Settings as the words of a command line: `["--batch", "per-rank"]`."""
    return [word for name, value in given.items() for word in (flag_name(name), value)]
