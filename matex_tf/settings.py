"""Every setting of matex_tf: one frozen dataclass, one table.

A setting is given as a flag (``--batch per-rank``), as an environment variable (``MATEX_BATCH=per-rank``), or not
at all; a flag wins over the environment, the environment over the default. ``python -m matex_tf.settings`` prints
the tables of docs/settings.md. The command lines and their help are made from the same table.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matex_tf.errors import SettingError

#: Topics of settings, in the order of the help and of docs/settings.md, and the page that says more about each.
GROUPS = {
    "data": "docs/data.md",
    "files and output": "docs/files.md",
    "strategy": "docs/strategies.md",
    "strategy pipe": "docs/strategies.md",
    "strategy gossip": "docs/strategies.md",
    "exchange": "docs/exchange.md",
    "faults": "docs/faults.md",
    "the run": "docs/running.md",
}


class _OfStrategies(Mapping[str, Any]):
    """What is known of `strategy`: its choices, and a sentence on each, are those of the registry of strategies.

    Looked up when they are asked for, since strategies lie above settings.
    """

    def __init__(self, known: Mapping[str, Any]):
        self._known = dict(known)

    def __getitem__(self, key: str) -> Any:
        if key not in ("text", "choices"):
            return self._known[key]
        from matex_tf.strategies import STRATEGIES

        if key == "choices":
            return tuple(STRATEGIES)
        return " ".join([self._known[key], *(f"`{name}`: {one.text}." for name, one in STRATEGIES.items())])

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def _setting(
    default: Any,
    text: str,
    *,
    group: str,
    kind: str = "text",
    choices: Sequence[str] = (),
    from_registry: bool = False,
) -> Any:
    """A setting. The first sentence of its text is its line in the help, all of it stands in docs/settings.md.

    Args:
        from_registry: whether it is `strategy`, whose choices are those of the registry.
    """
    known = {
        "text": text,
        "summary": text.partition(". ")[0].rstrip("."),
        "group": group,
        "kind": kind,
        "choices": tuple(choices),
    }
    return dataclasses.field(default=default, metadata=_OfStrategies(known) if from_registry else known)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run was told. Frozen: a run cannot change its own settings.

    Raises:
        SettingError: from `read`, for a value that a setting cannot have.
    """

    batch: str = _setting(
        "global",
        "What the script's batch size means. `global`: each rank computes its part of every batch. `per-rank`: each "
        "rank takes whole batches, and the global batch grows with the number of ranks.",
        choices=("global", "per-rank"),
        group="data",
    )
    data: str = _setting(
        "exact",
        "How tf.data pipelines are shared out. `exact`: every rank runs the whole pipeline and keeps its rows of each "
        "batch. `source`: each rank takes every p-th element before the first `map` or `batch`, and does 1/p of the "
        "work after that; a batch may hold other rows than on one rank.",
        choices=("exact", "source"),
        group="data",
    )
    rows: str = _setting(
        "auto",
        "Whose rows the data hold. `auto`: the ranks compare them. `shared`: every rank has all rows, "
        "and each batch is shared out, whatever differs. `own`: each rank has its own rows, and together they are the "
        "batch.",
        choices=("auto", "shared", "own"),
        group="data",
    )
    shard_loops: bool = _setting(
        True,
        "Whether to share out batched tf.data pipelines that a script iterates itself, and arrays that it feeds to a "
        "session. `off` is for scripts that share out their data themselves: each rank's batch is its own, and "
        "gradients are averaged with equal weights.",
        kind="switch",
        group="data",
    )
    require_sharing: bool = _setting(
        False,
        "Whether a job of several ranks ends with an error at its first training step that is not shared out, and at "
        "its end if nothing was trained. With `off` a line says so at the end.",
        kind="switch",
        group="data",
    )
    files: str = _setting(
        "once",
        "Who changes files and starts programs for a script. `once`: one of the ranks that share a "
        "file system, while the others wait. `every-rank`: each rank.",
        choices=("once", "every-rank"),
        group="files and output",
    )
    output: str = _setting(
        "first",
        "Whose output to show: `first`, `all`, or the name of a directory. `first`: that of rank 0. `all`: that of "
        "every rank, each line after the number of its rank. A directory: each rank writes `rank.R.log` there.",
        group="files and output",
    )
    threads: int = _setting(
        0,
        "Cores for each rank. Sets TensorFlow's intra- and inter-op threads and OMP_NUM_THREADS unless they are set "
        "already. 0 divides the cores of a node among its ranks.",
        kind="count",
        group="the run",
    )
    seed: int = _setting(
        -1,
        "The seed that Python, NumPy, TensorFlow and Keras get on every rank before the script starts. The script's "
        "own seeds come later and win. With -1 rank 0 draws one.",
        kind="integer",
        group="the run",
    )
    schedule: str = _setting(
        "chained",
        "When exchanges run. `chained`: one after the other, in the threads that compute. `funneled`: in a thread of "
        "their own, while backward continues. `concurrent`: in several threads.",
        choices=("chained", "funneled", "concurrent"),
        group="exchange",
    )
    strategy: str = _setting(
        "sync",
        "What ranks exchange, with whom and when.",
        from_registry=True,
        group="strategy",
    )
    pipe_width: int = _setting(
        2,
        "How many steps are in the pipe. A step applies the averaged gradients from one step fewer before. 1 is sync.",
        kind="positive",
        group="strategy pipe",
    )
    pipe_warmup: int = _setting(
        0,
        "How many steps of plain sync come first, for each optimizer.",
        kind="count",
        group="strategy pipe",
    )
    gossip_every: int = _setting(
        1,
        "Average the weights with a partner after every so many steps.",
        kind="positive",
        group="strategy gossip",
    )
    gossip_sync: bool = _setting(
        False,
        "Whether a step ends only when the partner's weights are there. With `off` they travel while "
        "the next step computes.",
        kind="switch",
        group="strategy gossip",
    )
    gossip_topology: str = _setting(
        "dissemination",
        "How partners are chosen. `dissemination` is for any number of ranks, `hypercube` for 2, 4, 8, … ranks.",
        choices=("dissemination", "hypercube"),
        group="strategy gossip",
    )
    ring_shuffle: str = _setting(
        "auto",
        "Whether rows that a rank has trained on go to the next rank while it computes. `auto`: if "
        "each rank holds its own rows. `on`: also for arrays that every rank holds, of which each then keeps a part. "
        "`off`: no. With `--faults shrink` rows stay where they are.",
        choices=("auto", "on", "off"),
        group="strategy gossip",
    )
    codec: str = _setting(
        "none",
        "How gradients are encoded between nodes, and with `gossip` weights between any two ranks. `none`: unchanged. "
        "`bf16`: the upper half of each float32. `int8`: 8 bits each, and a scale for 512 of them.",
        choices=("none", "bf16", "int8"),
        group="exchange",
    )
    error_feedback: bool = _setting(
        False,
        "Whether to keep the rounding error of a codec and add it to the gradient of the next step, or with `gossip` "
        "to the weights that are sent next.",
        kind="switch",
        group="exchange",
    )
    bucket_mb: int = _setting(
        32,
        "Megabytes of a bucket: gradients that travel together. Smaller buckets start sooner, while backward "
        "continues; larger ones need fewer messages. `pipe` has one bucket for each dtype.",
        kind="positive",
        group="exchange",
    )
    faults: str = _setting(
        "abort",
        "What happens when a rank dies. `abort`: all others end at once. `shrink`: the others share out its rows "
        "among themselves and carry on (needs Open MPI 5, or another MPI with ULFM). `restart`: `matex-tf run` starts "
        "the job again from the last checkpoint (any MPI).",
        choices=("abort", "shrink", "restart"),
        group="faults",
    )
    checkpoint_seconds: float = _setting(
        300.0,
        "With `--faults restart`: seconds between checkpoints within an epoch. With 0 there is only one at the end of "
        "each epoch.",
        kind="seconds",
        group="faults",
    )
    checkpoint_dir: str = _setting(
        "",
        "With `--faults restart`: the directory for checkpoints, which go to `.matex-checkpoints/NAME` in it, NAME "
        "being that of the script. All hosts must see it. When the job ends well, it removes what it has written "
        "there, and nothing else. Empty for the working directory.",
        kind="dir",
        group="faults",
    )
    min_ranks: int = _setting(
        1,
        "With `--faults shrink`: the job ends if fewer ranks than this are left.",
        kind="count",
        group="faults",
    )
    max_restarts: int = _setting(
        3,
        "With `--faults restart`: how often `matex-tf run` starts the job again.",
        kind="count",
        group="faults",
    )
    resume: bool = _setting(
        False,
        "With `--faults restart`: resume from the checkpoints of an earlier job that did not reach its end, if there "
        "are any. With `off` they are removed when the job begins.",
        kind="switch",
        group="faults",
    )
    stall_seconds: int = _setting(
        60,
        "After waiting so many seconds for a rank that is alive, a line says which rank is missing, and from what. 0 "
        "for never.",
        kind="count",
        group="faults",
    )
    stall_abort_seconds: int = _setting(
        0,
        "After waiting so many seconds for a rank that is alive, it counts as dead; `faults` says what happens then. "
        "0 for never: nobody can tell a rank that is stuck from one that has much to do. With `shrink` on several "
        "hosts a silent host counts as dead after this time, or after 30 seconds.",
        kind="count",
        group="faults",
    )
    csv_line_mb: int = _setting(
        64,
        "Megabytes of the longest line, and of the longest row, of a CSV file that `DataSet` reads. A longer one is an "
        "error before it takes memory.",
        kind="positive",
        group="data",
    )
    unpack_ratio: int = _setting(
        100,
        "For `DataSet`: how many times its own length a packed file (gzip) may unpack to. A file that unpacks to more "
        "than this, and to more than 256 MB, is an error before it fills memory or disk.",
        kind="positive",
        group="data",
    )
    steps: int = _setting(
        0,
        "End the script after so many training steps, as `sys.exit()` would, to measure a few. With 0 it trains to "
        "its own end.",
        kind="count",
        group="the run",
    )
    trace: str = _setting(
        "",
        "A file for a timeline of the run, in the format of Chrome's trace viewer; `matex-tf trace` summarizes it. "
        "Empty for none.",
        kind="file",
        group="files and output",
    )
    notes: bool = _setting(
        True,
        "Whether rank 0 prints the lines that start with `matex_tf:`.",
        kind="switch",
        group="files and output",
    )

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
        for field in dataclasses.fields(cls):
            if flags and field.name in flags:
                values[field.name] = _parse(field, flags[field.name], flag_name(field.name))
            elif variable_name(field.name) in environ:
                values[field.name] = _parse(field, environ[variable_name(field.name)], variable_name(field.name))
        told = cls(**values)
        told.check()
        return told

    def check(self, ranks: int = 0) -> None:
        """Refuse settings that do not go together.

        Args:
            ranks: how many there are; 0 where nobody knows yet.

        Raises:
            SettingError: what the strategy does not go together with, see `Strategy.check`.
        """
        if self.strategy != "sync":  # which goes with everything, so that most runs do not import strategies so early
            from matex_tf.strategies import STRATEGIES

            STRATEGIES[self.strategy].check(self, ranks)

    def as_environment(self) -> dict[str, str]:
        """The settings that differ from their defaults, as environment variables."""
        given = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                given[variable_name(field.name)] = ("off", "on")[value] if isinstance(value, bool) else str(value)
        return given


def flag_name(name: str) -> str:
    """`batch` to `--batch`, `some_name` to `--some-name`."""
    return "--" + name.replace("_", "-")


def as_flags(given: Mapping[str, str]) -> list[str]:
    """Settings as the words of a command line: `["--batch", "per-rank"]`."""
    return [word for name, value in given.items() for word in (flag_name(name), value)]


def variable_name(name: str) -> str:
    """`batch` to `MATEX_BATCH`."""
    return "MATEX_" + name.upper()


def _parse(field: dataclasses.Field[Any], text: str, given_as: str) -> Any:
    kind, choices = field.metadata["kind"], field.metadata["choices"]
    if choices and text not in choices:
        raise SettingError(f"{given_as} is {text!r}; it can be {' or '.join(choices)}.")
    if kind in ("count", "integer", "positive"):
        try:
            number = int(text)
        except ValueError:
            raise SettingError(f"{given_as} is {text!r}; it must be a whole number.") from None
        if kind == "count" and number < 0:
            raise SettingError(f"{given_as} is {number}; it must not be negative.")
        if kind == "positive" and number < 1:
            raise SettingError(f"{given_as} is {number}; it must be 1 or more.")
        return number
    if kind == "seconds":
        try:
            seconds = float(text)
        except ValueError:
            raise SettingError(f"{given_as} is {text!r}; it must be a number of seconds.") from None
        if not 0 <= seconds < float("inf"):
            raise SettingError(f"{given_as} is {text}; it must be 0 or more seconds.")
        return seconds
    if kind == "switch":
        if text.lower() in ("1", "on", "true", "yes"):
            return True
        if text.lower() in ("0", "off", "false", "no"):
            return False
        raise SettingError(f"{given_as} is {text!r}; it can be on or off.")
    if not text:
        raise SettingError(f"{given_as} is empty.")
    return text


def by_group() -> dict[str, list[dataclasses.Field[Any]]]:
    """The settings of each topic, in the order of `GROUPS`."""
    fields = dataclasses.fields(Settings)
    return {group: [field for field in fields if field.metadata["group"] == group] for group in GROUPS}


_current: Settings | None = None


def current() -> Settings:
    """The settings of this process, read from the environment where `use` was not called."""
    global _current
    if _current is None:
        _current = Settings.read()
    return _current


def use(settings: Settings) -> Settings:
    """Make `settings` those of this process; returns those before."""
    global _current
    before = current() if _current is not None else settings
    _current = settings
    return before


def default_shown(field: dataclasses.Field[Any]) -> str:
    """The default of a setting, as a user would type it."""
    kind = field.metadata["kind"]
    if kind == "switch":
        return ("off", "on")[bool(field.default)]
    return f"{field.default:g}" if kind == "seconds" else str(field.default)


def value_shown(field: dataclasses.Field[Any]) -> str:
    """What a setting takes, as the help shows it: `global|per-rank`, `N`."""
    kind = field.metadata["kind"]
    numbers = {"count": "N", "integer": "N", "positive": "N", "switch": "on|off"}
    return "|".join(field.metadata["choices"]) or numbers.get(kind, kind.upper())


def in_short(field: dataclasses.Field[Any]) -> str:
    """What a setting does, in its first sentence, and its default: its line in the help."""
    first = field.metadata["summary"].replace("`", "")
    default = default_shown(field)
    return f"{first} (default: {default})" if default else first


def tables() -> str:
    """The settings as Markdown, a table for each topic: what docs/settings.md has below its introduction."""
    lines = []
    for group, fields in by_group().items():
        page = GROUPS[group].removeprefix("docs/")
        lines += [f"## {group.capitalize()}", "", f"More: [{page}]({page}).", ""]
        lines += ["| flag | environment | default | what it does |", "|---|---|---|---|"]
        for field in fields:
            flag, variable = flag_name(field.name), variable_name(field.name)
            lines.append(f"| `{flag}` | `{variable}` | `{default_shown(field)}` | {field.metadata['text']} |")
        lines.append("")
    return "\n".join(lines[:-1])


if __name__ == "__main__":
    print(tables())
