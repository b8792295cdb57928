"""What `matex-tf trace FILE.json` shows of a timeline: where the time of a step went, as a table and as a picture."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from matex_tf.core.trace import BY_XLA
from matex_tf.errors import MissingPackage, SettingError
from matex_tf.features.trace import page as timeline_page
from matex_tf.job.command_line import Parser
from matex_tf.planning import plotting
from matex_tf.planning.timeline import Step, read, settled
from matex_tf.storage import atomic_file

#: Parts of a step, in the order in which they are shown; their colours in the picture.
PARTS = {
    "compute": "#4c78a8",
    "pack": "#f2cf5b",
    "wait": "#bab0ac",
    "reduce": "#54a24b",
    "network": "#e45756",
    "agree": "#b279a2",
    "other": "#e3ded9",  # of an exchange
    "apply": "#72b7b2",
}
_REFUSAL = "matex-tf trace takes no {words}{near}."


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf trace",
        "FILE.json [--png FILE.png] [--html FILE.html]",
        "Say where the time of a step went, in a run that was started with --trace FILE.json, and draw the step in the "
        "middle of the run, one row a rank. With --html a page instead, with the steps around it and what to try.",
        "docs/watching.md",
        refusal=_REFUSAL,
        mixed=True,
    )
    parser.add("output", "--png", metavar="FILE.png", default="", help="Where to draw it (default: FILE.png)")
    parser.add("output", "--html", metavar="FILE.html", default="", help="Write a page that any browser opens")
    return parser


def command(given: argparse.Namespace) -> int:
    """Print the table and draw the picture of a timeline; returns the exit code."""
    if not given.rest:
        raise SettingError("there is no timeline to read: matex-tf trace FILE.json.")
    path, *more = given.rest
    if more:
        raise SettingError(_REFUSAL.format(words=" ".join(more), near=""))
    steps = read(path)
    show(steps)
    if given.html:
        atomic_file.require(given.html, "--html")
        own = {rank: usual([step for step in steps if step.rank == rank]) for rank in sorted({s.rank for s in steps})}
        page = timeline_page.render(steps, own, PARTS, Path(path).name)
        atomic_file.put(given.html, lambda draft: Path(draft).write_text(page, encoding="utf-8"))
        print(f"the steps in the middle of the run: {given.html}")
        if not given.png:
            return 0
    png = given.png or f"{path.removesuffix('.json')}.png"
    try:
        draw(steps, png)
    except MissingPackage as error:
        if given.png:
            raise
        print(f"no picture is drawn: {error}")
        return 0
    print(f"the step in the middle of the run: {png}")
    return 0


def show(steps: Sequence[Step]) -> None:
    """Print a table: for each rank the step and its parts, means over the same steps, see `usual`."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    count = len([s for s in steps if s.rank == steps[0].rank])
    title = f"milliseconds of a step: means over the middle half, by length, of {count} steps a rank"
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("rank", "step", *PARTS):
        table.add_column(column, justify="right", no_wrap=True)
    for rank in sorted({step.rank for step in steps}):
        own = usual([step for step in steps if step.rank == rank])
        means = [statistics.fmean(step.parts.get(part, 0.0) for step in own) / 1e3 for part in PARTS]
        whole = statistics.fmean(step.length for step in own) / 1e3
        table.add_row(str(rank), f"{whole:.2f}", *(f"{mean:.2f}" for mean in means))
    console = Console(highlight=False, width=100)  # the same in a file as on a narrow terminal
    console.print(title)
    console.print(table)
    if steps[0].what.endswith(BY_XLA):
        print("computing has the exchange in it: XLA makes it within the step (docs/jax.md)")


def usual(steps: Sequence[Step]) -> Sequence[Step]:
    """The middle half of the settled steps by length: some steps wait for the machine, and would carry a mean away."""
    own = sorted(settled(steps), key=lambda step: step.length)
    return own[len(own) // 4 : len(own) - len(own) // 4]


def draw(steps: Sequence[Step], path: str) -> None:
    """Draw one step of every rank, the one in the middle of the run, to a PNG.

    Args:
        steps: of all ranks, as `read` gives them.
        path: of the PNG, which is written anew.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    pyplot = plotting.pyplot()
    from matplotlib.patches import Patch

    ranks = sorted({step.rank for step in steps})
    middle = [own[len(own) // 2] for rank in ranks for own in [[step for step in steps if step.rank == rank]]]
    zero = min(step.begin for step in middle)
    figure, axes = pyplot.subplots(figsize=(11, 1.2 + 0.6 * len(ranks)))
    for step in middle:
        place = ranks.index(step.rank)
        axes.broken_barh([((step.begin - zero) / 1e3, step.length / 1e3)], (place - 0.4, 0.8), color=PARTS["compute"])
        for name, begin, length, _ in step.spans:
            axes.broken_barh([((begin - zero) / 1e3, length / 1e3)], (place - 0.4, 0.8), color=PARTS[name])
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.set_title(middle[0].what)
    axes.legend(handles=[Patch(color=colour, label=name) for name, colour in PARTS.items()], ncols=len(PARTS),
                loc="upper center", bbox_to_anchor=(0.5, -0.25), frameon=False)  # fmt: skip
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
