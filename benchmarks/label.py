"""How much of the rest a network names right, against how many images have a label: `matex-tf label` without a page.

An oracle gives the labels. Networks go on from budget to budget, as they do behind the page, and are those of the page.
Three ways to choose the images that get a label, and to learn from the others, are compared on the same images with the
same number of training steps: any images; those at the boundary; those at the boundary, and FixMatch for the others.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tables

#: Which images are asked for, and whether the network learns from the others too.
WAYS = {"random": ("random", False), "boundary": ("margin", False), "boundary + FixMatch": ("margin", True)}
#: What does not change what an image shows, and the share of images that get labels.
DATA = {"digits": "shift", "water/ice": "rotate", "things": "shift"}
BUDGETS = (1 / 24, 1 / 12, 1 / 8, 1 / 6, 1 / 3)
_EXAMPLES = Path(__file__).parents[1] / "examples" / "make_data.py"


def load(name: str, count: int, folder: str) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 with channels, and what they are."""
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return (15 * x).astype(np.uint8).reshape(-1, 8, 8, 1), y.astype(np.int64)
    import h5py

    what = {"water/ice": "crystals", "things": "things"}[name]
    subprocess.run([sys.executable, _EXAMPLES, folder, f"--{what}", str(count)], check=True)
    with h5py.File(Path(folder, f"{what}.h5")) as file:
        x, y = file["images"][:], file["labels"][:]
    return x if x.ndim == 4 else x[..., None], y.astype(np.int64)


def curve(
    x: np.ndarray, y: np.ndarray, augment: str, way: str, budgets: Sequence[int], steps: int, seed: int
) -> list[float]:
    """Of the images without a label, the share that is named right, for each number of labels."""
    import keras

    from matex_tf.features.label import boundary
    from matex_tf.features.label.network import train
    from matex_tf.features.label.network.learner import Learner

    ask, semi = WAYS[way]
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    classes = int(y.max()) + 1
    learner = Learner(x, classes, augment, semi, 0.95, seed)
    random = np.random.default_rng(seed)
    labels = np.full(len(y), -1, np.int64)
    first = random.permutation(len(y))[: budgets[0]]
    for missing in set(range(classes)) - set(y[first].tolist()):  # whoever labels knows one of each
        first = np.append(first[1:], random.choice(np.flatnonzero(y == missing)))
    labels[first] = y[first]
    found, nobody = [], np.zeros(0, np.int64)
    said = features = np.zeros((0, 0), np.float32)
    for number, budget in enumerate(budgets):
        if number:
            free = np.flatnonzero(labels < 0)
            more = boundary.ask(
                ask, budget - int((labels >= 0).sum()), free, np.flatnonzero(labels >= 0), said.mean(axis=0), features,
                boundary.disagreement_of(said), seed * 100 + number,
            )  # fmt: skip
            labels[more] = y[more]
        named = np.flatnonzero(labels >= 0)
        learner.learn(labels, named, nobody, steps, 32, train.EPOCHS, seed * 100 + number)
        said, features = learner.answers()
        rest = labels < 0
        found.append(float((said.mean(axis=0).argmax(axis=1) == y)[rest].mean()))
        print(f"seed {seed}, {way}, {budget} labels: {found[-1]:.3f}", file=sys.stderr, flush=True)
    return found


def curves(
    x: np.ndarray,
    y: np.ndarray,
    augment: str,
    budgets: Sequence[int],
    steps: int,
    jobs: Sequence[tuple[int, str]],
    processes: int,
) -> Iterator[tuple[int, str, list[float]]]:
    """The curve of each seed and way, as they come."""
    if processes == 1:
        for seed, way in jobs:
            yield seed, way, curve(x, y, augment, way, budgets, steps, seed)
        return
    with futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(curve, x, y, augment, way, budgets, steps, seed): (seed, way) for seed, way in jobs}
        for done in futures.as_completed(waiting):
            yield *waiting[done], done.result()


def least(budgets: Sequence[int], means: Sequence[float], aim: float) -> str:
    """How many labels reach an aim, on the line between two budgets; "" where none does."""
    for place, mean in enumerate(means):
        if mean >= aim:
            if not place:
                return f"≤ {budgets[0]:,}"
            before = means[place - 1]
            share = (aim - before) / (mean - before)
            return f"{budgets[place - 1] + share * (budgets[place] - budgets[place - 1]):,.0f}"
    return f"> {budgets[-1]:,}"


def draw(figures: dict[str, Any], path: str) -> None:
    """A plot for each kind of images: a line for each way, and the seeds as points."""
    from matex_tf.planning import plotting

    plt = plotting.pyplot()
    drawing, all_axes = plt.subplots(1, len(figures), figsize=(4.6 * len(figures), 3.8), squeeze=False)
    for axes, (name, of_data) in zip(all_axes[0], figures.items(), strict=True):
        for way, colour in zip(WAYS, ("0.45", "tab:blue", "tab:orange"), strict=True):
            if way not in of_data["ways"]:  # of a run that was stopped
                continue
            runs = np.array(list(of_data["ways"][way].values()))
            axes.plot(of_data["budgets"], 100 * runs.mean(axis=0), marker="o", color=colour, label=way)
            for run in runs:
                axes.plot(of_data["budgets"], 100 * run, ".", color=colour, alpha=0.35, markersize=4)
        axes.axhline(97, color="0.8", linestyle=":")
        axes.set(title=f"{name}, {of_data['images']:,} images", xlabel="images with a label")
        axes.set_ylabel("% of the rest right")
        axes.legend(loc="lower right", fontsize=8)
    drawing.tight_layout()
    drawing.savefig(path, dpi=110)
    plt.close(drawing)


def report(name: str, of_data: dict[str, Any]) -> None:
    """Print a table of one kind of images."""
    budgets, rows = of_data["budgets"], []
    for way in filter(of_data["ways"].__contains__, WAYS):
        runs = list(of_data["ways"][way].values())
        means = [statistics.mean(column) for column in zip(*runs, strict=True)]
        ends = [(min(column), max(column)) for column in zip(*runs, strict=True)]
        cells = [f"{100 * m:.1f} ({100 * a:.1f}–{100 * b:.1f})" for m, (a, b) in zip(means, ends, strict=True)]
        rows.append([way, *cells, least(budgets, means, 0.97)])
    note = f"{of_data['images']:,} images; mean of {len(runs)} seeds, least and most"
    columns = ["labels", *[f"{budget:,}" for budget in budgets], "97 % from"]
    tables.show(f"% of the rest right: {name}", columns, rows, note=note)


def main() -> None:
    parser = tables.parser("label", __doc__)
    parser.add_argument("--data", default=",".join(DATA), help=f"with commas between (default {','.join(DATA)})")
    parser.add_argument("--seeds", type=int, default=5, help="how often, each with other draws (default 5)")
    parser.add_argument("--first", type=int, default=0, help="seed (default 0)")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"with commas between (default {','.join(WAYS)})")
    parser.add_argument("--images", type=int, default=4000, help="of water/ice and things (default 4000)")
    parser.add_argument("--steps", type=int, default=300, help="of training after each budget (default 300)")
    parser.add_argument("--png", metavar="FILE", help="draw the figures into this file")
    parser.add_argument("--processes", type=int, default=2, help="that compute at the same time (default 2)")
    parser.add_argument("--read", default="", help="show what --json has written to these files, with commas between")
    parser.add_argument(
        "--seconds", action="store_true", help="measure how long the page waits for suggestions instead"
    )
    parser.add_argument("--ranks", type=int, default=2, help="for --seconds (default 2)")
    options = tables.parse(parser)
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
    if options.seconds:
        from benchmarks import label_page

        with tempfile.TemporaryDirectory() as folder:
            load("water/ice", options.images, folder)
            label_page.report(Path(folder, "crystals.h5"), options.ranks, 5, ["--augment", "rotate"])
        return
    ways = options.ways.split(",")
    if unknown := set(ways) - set(WAYS):
        parser.error(f"--ways: {', '.join(sorted(unknown))} is none of {', '.join(WAYS)}")
    figures: dict[str, Any] = {}
    for path in filter(None, options.read.split(",")):
        for name, of_data in json.loads(Path(path).read_text())["figures"].items():
            known = figures.setdefault(name, {**of_data, "ways": {}})["ways"]
            for way, runs in of_data["ways"].items():
                known.setdefault(way, {}).update(runs)
    for name, of_data in figures.items():
        report(name, of_data)
    if options.png and figures:
        draw(figures, options.png)
    for name in () if options.read else options.data.split(","):
        with tempfile.TemporaryDirectory() as folder:
            x, y = load(name, options.images, folder)
        budgets = [round(len(y) * share) for share in BUDGETS]
        of_data = figures[name] = {"budgets": budgets, "images": len(y), "ways": {}}
        jobs = [(seed, way) for seed in range(options.first, options.first + options.seeds) for way in ways]
        for seed, way, shares in curves(x, y, DATA[name], budgets, options.steps, jobs, options.processes):
            of_data["ways"].setdefault(way, {})[str(seed)] = shares
            print(f"{name}, seed {seed}, {way}: " + " ".join(f"{share:.3f}" for share in shares), flush=True)
            tables.keep(figures)
        report(name, of_data)
        if options.png:
            draw(figures, options.png)
    tables.keep(figures)


if __name__ == "__main__":
    main()
