"""Networks that change while they train: seconds, processor seconds, parameters, FLOPs and score, beside peers.

Every seed is trained in each way in turn, so that what else the machine does falls on all alike. Peers in the same run:
magnitude pruning by tensorflow_model_optimization (in .peers/networks), and PruneTrain's group lasso, each beside the
same training without it in its own framework, in one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import launching, peers, tables
from benchmarks.apoptosis import tasks
from benchmarks.apoptosis.tasks import Task
from matex_tf.planning import plotting

#: Ways to train, by the flags of `matex-tf run`.
WAYS: dict[str, list[str]] = {
    "fixed": [],
    "apoptosis": ["--apoptosis", "on"],
    "grow": ["--grow", "on"],
    "grow and apoptosis": ["--grow", "on", "--apoptosis", "on"],
}
#: Peers: the module, whether it needs the other environment, and its last word; and what each is beside.
PEERS: dict[str, tuple[str, bool, str, str]] = {
    "tf_keras": ("pruning", True, "0", ""),
    "magnitude pruning": ("pruning", True, "0.75", "tf_keras"),
    "keras": ("prunetrain", False, "0", ""),
    "PruneTrain": ("prunetrain", False, "0.2", "keras"),
}

Found = dict[str, Any]
_AT = " from width "


def main() -> None:
    parser = tables.parser("apoptosis", __doc__)
    parser.add_argument("--task", choices=list(tasks.TASKS), default="higgs", help="what is trained (default higgs)")
    parser.add_argument(
        "--ways", default="fixed,apoptosis", help=f"of {','.join(WAYS)}, or none (default fixed,apoptosis)"
    )
    parser.add_argument("--peers", default="", help=f"of {','.join(PEERS)} (default none)")
    parser.add_argument("--ranks", type=int, default=4, help="of each training that is no peer's (default 4)")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each kind (default 5)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    before = "of --json, of the same trainings with other seeds or in other ways: they are not run again"
    parser.add_argument("--with", dest="before", metavar="FILE", nargs="*", default=[], help=before)
    rows = "of which a tenth is for validation and a tenth for the test (default: the task's)"
    parser.add_argument("--rows", type=int, default=0, help=rows)
    parser.add_argument("--epochs", type=int, default=0, help="of each training (default: the task's)")
    parser.add_argument("--batch", type=int, default=0, help="global batch (default: the task's)")
    parser.add_argument("--width", type=float, default=0, help="of hidden layers, or a multiple of the task's widths")
    parser.add_argument("--widths", default="", help="several, such as 75,150,300: each way begins from each of them")
    reach = "the width up to which networks that grow may grow, from any --widths (default: their own)"
    parser.add_argument("--reach", type=float, default=0, help=reach)
    parser.add_argument("--flags", default="", help="more flags for trainings that change, such as '--seed 3'")
    parser.add_argument("--draw", metavar="FILE", help="a PNG file: score against seconds, FLOPs and parameters")
    options = tables.parse(parser)
    task = tasks.TASKS[options.task]
    options.rows, options.epochs = options.rows or task.rows, options.epochs or task.epochs
    options.batch, options.width = options.batch or task.batch, options.width or task.width
    ways = [way for way in options.ways.split(",") if way and way != "none"]
    others = [peer for peer in options.peers.split(",") if peer]
    if unknown := [name for name in (*ways, *others) if name not in WAYS and name not in PEERS]:
        sys.exit(f"scripts/bench apoptosis: there is no {unknown[0]}; there is {', '.join([*WAYS, *PEERS])}.")
    if any(PEERS[peer][1] for peer in others):
        peers.need(peers.NETWORKS)
    widths = [f"{_AT}{float(width):g}" for width in options.widths.split(",") if width] or [""]
    found = {name + width: earlier(name + width, options) for name in (*ways, *others) for width in widths}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        task.write(data, options.rows)
        for seed in range(options.first, options.first + options.seeds):
            for name in found:
                if seed in found[name]:
                    continue
                found[name][seed] = run(name, task, data, seed, options)
                print(f"seed {seed}, {name}: {said(found[name][seed])}", file=sys.stderr, flush=True)
                tables.keep({"task": task.name, "options": vars(options), "found": found})
    runs = {name: [by_seed[seed] for seed in sorted(by_seed)] for name, by_seed in found.items()}
    show(task, runs, options)
    if options.widths and "fixed" in ways:
        show_widths(task, runs)
    if options.draw:
        draw(task, runs, Path(options.draw))
        print(f"drawn: {options.draw}")


def earlier(name: str, options: argparse.Namespace) -> dict[int, Found]:
    """By seed, what files have of trainings like those that are wanted."""
    same = ["task", "ranks", "rows", "epochs", "batch", "width"]
    if name.partition(_AT)[0] != "fixed":
        same += ["flags", "reach"]
    found: dict[int, Found] = {}
    for path in options.before:
        kept = json.loads(Path(path).read_text())["figures"]
        if other := [what for what in same if kept["options"].get(what, 0) != getattr(options, what)]:
            sys.exit(f"scripts/bench apoptosis: the trainings of {path} were run with another --{other[0]}.")
        found.update({int(seed): one for seed, one in kept["found"].get(name, {}).items()})
    seeds = range(options.first, options.first + options.seeds)
    return {seed: one for seed, one in found.items() if seed in seeds}


def run(name: str, task: Task, data: Path, seed: int, options: argparse.Namespace) -> Found:
    """One training, in a job of its own."""
    name, _, width = name.partition(_AT)
    words = [task.name, str(data), str(seed), str(options.epochs), str(options.batch), width or f"{options.width:g}"]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    if name in WAYS:
        flags = [*WAYS[name], *(options.flags.split() if WAYS[name] else [])]
        if options.reach and "--grow" in flags:
            flags += ["--grow-to", f"{options.reach / (float(width) if width else options.width):g}"]
        module = ["-m", "matex_tf", "--notes", "off", *flags, "-m", "benchmarks.apoptosis.train"]
        result: Found = launching.on_ranks(options.ranks, [*module, *words], environ=quiet)
        return result
    module_name, elsewhere, last, _ = PEERS[name]
    python = str(peers.NETWORKS.python) if elsewhere else sys.executable
    line = [python, "-m", f"benchmarks.apoptosis.{module_name}", *words, last]
    printed = launching.run(line, environ={**quiet, **launching.THREADS})
    told = [text for text in printed.splitlines() if text.startswith("RESULT ")]
    result = json.loads(told[0].removeprefix("RESULT "))
    return result


def said(one: Found) -> str:
    last = one["epochs"][-1]
    return (
        f"{last['parameters']:,} parameters, score {last['score']:.4f}, test {one['test']:.4f}, "
        f"{last['seconds']:.1f} s, {last['cpu']:.1f} CPU s"
    )


def reached(one: Found, score: float) -> Mapping[str, float] | None:
    """The first epoch after which the score was at least this; None where none was."""
    return next((epoch for epoch in one["epochs"] if epoch["score"] >= score), None)


def best(one: Found) -> float:
    """The best score after an epoch: a script would keep that epoch's weights."""
    return max(float(epoch["score"]) for epoch in one["epochs"])


def show(task: Task, found: Mapping[str, Sequence[Found]], options: argparse.Namespace) -> None:
    """The table: each way beside the one that it changes, seed by seed."""
    rows = []
    for name, runs in found.items():
        kind, at, width = name.partition(_AT)
        beside = found.get(("fixed" if kind in WAYS else PEERS[kind][3] or kind) + at + width)
        row = [
            name,
            *(_median(runs, _last(what), form) for what, form in (("parameters", "{:,.0f}"), ("flops", "{:,.0f}"))),
        ]
        row += [
            _median(runs, best, "{:.4f}"),
            _median(runs, lambda one: float(one["test"]), "{:.4f}"),
            _median(runs, _last("seconds"), "{:.1f}"),
            _median(runs, _last("cpu"), "{:.1f}"),
        ]
        if beside is None or beside is runs:
            row += [""] * 5
        else:
            pairs = list(zip(beside, runs, strict=True))
            row += [
                _ratio(pairs, _last("parameters")),
                _ratio(pairs, _last("trained flops")),
                _ratio(pairs, _last("cpu")),
                *_to_same(pairs),
            ]
        rows.append(row)
    score = task.metric.replace("auc", "AUC")
    where = (
        f"{options.rows:,} rows, {options.epochs} epochs of batches of {options.batch}, {options.seeds} seeds, medians"
    )
    tables.show(
        f"{task.name}: networks that change while they train",
        ["training", "parameters", "FLOPs a row", f"best {score}", f"test {score}", "s", "CPU s",
         "parameters ÷", "FLOPs ÷", "CPU ÷", "CPU ÷ to same", "s ÷ to same"],
        rows,
        less=["CPU s"],
        note=f"{where}; ÷: how many times less than without; to same: until the best {score} of the training without",
    )  # fmt: skip


def show_widths(task: Task, found: Mapping[str, Sequence[Found]]) -> None:
    """Each way beside the best of the widths that somebody could have chosen for a network that does not change."""
    scores = {name: statistics.median(map(best, runs)) for name, runs in found.items()}
    chosen = max((name for name in scores if name.startswith("fixed")), key=lambda name: scores[name])
    print(f"best of those that do not change: {chosen}, with a best {task.metric} of {scores[chosen]:.4f}")
    for name, score in scores.items():
        if not name.startswith("fixed"):
            print(f"{name}: {100 * (score - scores[chosen]):+.2f} points")


def _last(what: str) -> Callable[[Found], float]:
    return lambda one: float(one["epochs"][-1][what])


def _median(runs: Sequence[Found], value: Callable[[Found], float], form: str) -> str:
    return form.format(statistics.median(map(value, runs)))


def _ratio(pairs: Sequence[tuple[Found, Found]], value: Callable[[Found], float]) -> str:
    ratios = [value(one) / max(value(other), 1e-9) for one, other in pairs]
    return f"{statistics.median(ratios):.2f}"


def _to_same(pairs: Sequence[tuple[Found, Found]]) -> list[str]:
    """How many times less until the best score of the training without; how many seeds did not come to it is said."""
    both: dict[str, list[float]] = {"cpu": [], "seconds": []}
    missed = 0
    for one, other in pairs:
        target = best(one)
        there, here = reached(one, target), reached(other, target)
        if there is None or here is None:
            missed += 1
            continue
        for what, ratios in both.items():
            ratios.append(there[what] / here[what])
    cells = [f"{statistics.median(ratios):.2f}" if ratios else "" for ratios in both.values()]
    return [f"{cell} ({missed} not)".strip() if missed else cell for cell in cells]


def draw(task: Task, found: Mapping[str, Sequence[Found]], path: Path) -> None:
    """Score against CPU seconds, trained FLOPs and parameters: a line for each seed, of one colour for each way."""
    pyplot = plotting.pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4.2), sharey=True)
    kinds = [("cpu", "processor seconds"), ("trained flops", "FLOPs trained"), ("parameters", "parameters")]
    for place, (name, runs) in enumerate(found.items()):
        for number, one in enumerate(runs):
            for axis, (what, _) in zip(axes, kinds, strict=True):
                data = [[epoch[key] for epoch in one["epochs"]] for key in (what, "score")]
                axis.plot(*data, color=f"C{place}", linewidth=1, marker=".", label=None if number else name)
    for axis, (_, label) in zip(axes, kinds, strict=True):
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[2].set_xscale("log")
    axes[0].set_ylabel(task.score)
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
