"""The tree of candidates, drawn: who was trained how far, with which score, and where it stopped."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matex_tf.features.blueprints.halving import Candidate, Rung
from matex_tf.features.blueprints.ranges import shown
from matex_tf.planning import plotting


def draw(path: str, candidates: Sequence[Candidate], rungs: Sequence[Rung], epochs: int, name: str, title: str) -> None:
    """Draw into a PNG file.

    Args:
        path: of the file.
        candidates: the best first.
        rungs: what was done in each.
        epochs: up to which the best was trained.
        name: of the score.
        title: of the picture.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    plt = plotting.pyplot()
    known = [one.details["shown"][-1] for one in candidates if one.details.get("shown")]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    colours = plt.get_cmap("viridis")
    figure, axes = plt.subplots(figsize=(10, 1.4 + 0.34 * len(candidates)))
    for place, one in enumerate(candidates):
        line = [0, *one.epochs]
        if place == 0:
            line.append(epochs)
        values = one.details.get("shown", [])
        for number in range(1, len(line)):
            value = values[min(number, len(values)) - 1] if values else math.nan
            part = (value - low) / (high - low) if high > low else 1.0
            colour = colours(0.9 * part) if part == part else "0.7"
            axes.plot(line[number - 1 : number + 1], [place, place], color=colour, linewidth=4 if place else 7,
                      solid_capstyle="butt")  # fmt: skip
        end = line[-1]
        said = "failed" if one.failed else (f"{values[-1]:.4f}" if values else "")
        axes.annotate(said, (end, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)
        axes.plot([end], [place], marker="*" if place == 0 else "|", color="black", markersize=11 if place == 0 else 7)
    for number, rung in enumerate(rungs):
        label = "the worse half stops" if number == 0 else None
        axes.axvline(rung.until, color="0.75", linestyle=":", linewidth=1, label=label, zorder=0)
    # A joint from each candidate that stopped to one that went on at that rung: a tree, whose trunk is the best.
    for rung in rungs:
        rows = [place for place, one in enumerate(candidates) if one.number in rung.trained]
        axes.plot([rung.until, rung.until], [min(rows), max(rows)], color="0.85", linewidth=1, zorder=0)
    axes.set_yticks(
        range(len(candidates)), [f"{shown(one.values, 60)}  #{one.number}" for one in candidates], fontsize=8
    )
    axes.invert_yaxis()
    axes.set_xlim(0, epochs * 1.12)
    axes.set_xlabel("epochs")
    axes.set_title(f"{title}: {name}", fontsize=10)
    if rungs:
        axes.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
