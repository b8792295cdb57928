"""Figures of the seconds that were measured: JSON, a table, a plot."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import tables
from matex_tf.planning import plotting

from .turns import LOCK_STEP  # relative: the tests import this package by its own name

HOROVOD = "Horovod"


@dataclass
class Figure:
    """One way to exchange, for one model.

    Attributes:
        parameters: weights that are trained.
        rows: of a rank's batch.
        framework: what it runs on.
        milliseconds: a step, the median over rounds of the slowest rank's mean step; spread: least and most of a round.
        overhead: milliseconds over the lock step of the same framework: the median of the differences in each round.
        overhead_spread: the first and the third quartile of those.
        least: the least step of any round less the least lock step, in milliseconds: where a machine is busy, the
            least disturbed of both; least_of_horovod: as a part of Horovod's.
        rounds: milliseconds of a step in each round.
        of_horovod: overhead as a part of Horovod's; None where Horovod did not run, or added nothing.
    """

    model: str
    parameters: int
    ranks: int
    rows: int
    framework: str
    exchange: str
    milliseconds: float
    spread: tuple[float, float]
    overhead: float
    overhead_spread: tuple[float, float]
    least: float
    rounds: list[float]
    of_horovod: float | None = None
    least_of_horovod: float | None = None


@dataclass
class Seconds:
    """What was measured of one way to exchange: the seconds of a step, by round."""

    framework: str
    exchange: str
    rounds: list[float]


def figures(model: str, parameters: int, ranks: int, rows: int, measured: Sequence[Seconds]) -> list[Figure]:
    """The figures of one model."""
    bases = {one.framework: one.rounds for one in measured if one.exchange == LOCK_STEP}
    result = []
    for one in measured:
        over = [1e3 * (mine - base) for mine, base in zip(one.rounds, bases[one.framework], strict=True)]
        quartiles = statistics.quantiles(over, n=4) if len(over) > 1 else [over[0]] * 3
        result.append(
            Figure(
                model, parameters, ranks, rows, one.framework, one.exchange,
                1e3 * statistics.median(one.rounds), (1e3 * min(one.rounds), 1e3 * max(one.rounds)),
                statistics.median(over), (quartiles[0], quartiles[2]),
                1e3 * (min(one.rounds) - min(bases[one.framework])), [1e3 * seconds for seconds in one.rounds],
            )
        )  # fmt: skip
    horovod = next((figure for figure in result if figure.exchange == HOROVOD), None)
    for figure in result:
        if horovod is not None and figure.exchange != LOCK_STEP:
            figure.of_horovod = figure.overhead / horovod.overhead if horovod.overhead > 0 else None
            figure.least_of_horovod = figure.least / horovod.least if horovod.least > 0 else None
    return result


def read(files: Sequence[str]) -> list[Figure]:
    """The figures of earlier runs, from their JSON files; those of older versions are a list of figures."""
    kept = [json.loads(Path(file).read_text()) for file in files]
    return [Figure(**figure) for one in kept for figure in (one if isinstance(one, list) else one["figures"])]


def show(figures: Sequence[Figure], title: str, note: str) -> None:
    """Print the table."""
    rows = []
    for figure in figures:
        low, high = figure.spread
        cells = [""] * 5
        if figure.exchange != LOCK_STEP:
            first, third = figure.overhead_spread
            parts = ["" if part is None else f"{part:.2f}" for part in (figure.of_horovod, figure.least_of_horovod)]
            quartiles = f"{first:.2f} to {third:.2f}"
            cells = [f"{figure.overhead:+.2f}", quartiles, parts[0], f"{figure.least:+.2f}", parts[1]]
        labels = [f"{figure.model} {figure.parameters:,}", figure.framework, figure.exchange]
        rows.append([*labels, f"{figure.milliseconds:.2f}", f"{low:.2f} to {high:.2f}", *cells])
    columns = ["model", "framework", "exchange", "ms a step", "spread", "over lock step", "quartiles", "/ Horovod's"]
    columns += ["least", "/ Horovod's"]
    less, spreads = ["ms a step"], {"ms a step": "spread"}
    tables.show(title, columns, rows, labels=3, less=less, spreads=spreads, note=note)


def plot(figures: Sequence[Figure], path: str) -> None:
    """Draw what each exchange adds to a step, a panel a model."""
    pyplot = plotting.pyplot()
    models = list(dict.fromkeys(figure.model for figure in figures))
    canvas, panels = pyplot.subplots(1, len(models), figsize=(4.2 * len(models), 3.6), squeeze=False)
    for panel, model in zip(panels[0], models, strict=True):
        bars = [figure for figure in figures if figure.model == model and figure.exchange != LOCK_STEP][::-1]
        sides = [
            [max(0.0, bar.overhead - bar.overhead_spread[0]) for bar in bars],
            [max(0.0, bar.overhead_spread[1] - bar.overhead) for bar in bars],
        ]
        own = [bar.exchange.split()[0] in ("chained", "funneled", "concurrent", "meet", "patched") for bar in bars]
        panel.barh(
            [bar.exchange for bar in bars],
            [bar.overhead for bar in bars],
            xerr=sides,
            color=["#1f77b4" if mine else "#9a9a9a" for mine in own],
        )
        panel.set_title(f"{model}, {bars[0].parameters:,} weights, {bars[0].ranks} ranks", fontsize=9)
        panel.set_xlabel("ms a step over lock step")
        panel.axvline(0, color="black", linewidth=0.6)
    canvas.tight_layout()
    canvas.savefig(path, dpi=120)
