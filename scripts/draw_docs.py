"""Draw the pictures of the docs that explain: `python scripts/draw_docs.py` writes docs/images/*.svg.

They follow the reader's color scheme, light or dark. A test compares the files with what is drawn here.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]

STYLE = """
svg { --ink: #1f2328; --dim: #59636e; --box: #f6f8fa; --edge: #afb8c1;
  --c0: #54aeff; --c1: #4ac26b; --c2: #d4a72c; --c3: #c297ff; --wait: #d0d7de; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --dim: #9198a1; --box: #161b22; --edge: #4d5560;
  --c0: #388bfd; --c1: #2ea043; --c2: #9e6a03; --c3: #8957e5; --wait: #484f58; --bad: #f85149; } }
text { font: 14px system-ui, sans-serif; fill: var(--ink); } .dim { fill: var(--dim); font-size: 12px; }
.b { font-weight: 600; } .m { text-anchor: middle; } .e { text-anchor: end; }
.box { fill: var(--box); stroke: var(--edge); } .line { stroke: var(--edge); fill: none; stroke-width: 1.5; }
.dash { stroke-dasharray: 4 4; } .c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); }
.c3 { fill: var(--c3); } .wait { fill: var(--wait); } .bad { stroke: var(--bad); stroke-width: 3; fill: none; }
.tip { fill: var(--edge); }
"""


class Picture:
    """An SVG that grows."""

    def __init__(self, width: int, height: int, title: str):
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto"><path class="tip" d="M0 0 10 5 0 10z"/></marker></defs>',
        ]

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box", round_by: int = 4) -> None:
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_by}"/>'
        )

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>')

    def line(self, *points: float, tip: bool = True, kind: str = "line") -> None:
        path = "M" + " ".join(f"{point:g}" for point in points)
        end = ' marker-end="url(#tip)"' if tip else ""
        self._parts.append(f'<path class="{kind}" d="{path}"{end}/>')

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])


def batch() -> str:
    """What happens to a batch of 50 rows on four ranks."""
    rows = [12, 13, 12, 13]
    drawn = Picture(820, 300, "A batch of 50 rows on four ranks: each computes its rows, gradients are averaged")
    drawn.text(60, 26, "one batch", "b m")
    drawn.text(310, 26, "each rank computes its rows", "b m")
    drawn.text(530, 26, "MPI", "b m")
    drawn.text(710, 26, "one update, on every rank", "b m")
    top = 45.0
    for rank, count in enumerate(rows):
        height, middle = count * 4.6, 45 + rank * 60 + 25
        drawn.box(25, top, 70, height, f"c{rank}", 0)
        drawn.text(60, top + height / 2 + 5, f"{count} rows", "m")
        drawn.line(97, top + height / 2, 178, middle)
        drawn.box(180, 45 + rank * 60, 260, 50)
        drawn.box(180, 45 + rank * 60, 8, 50, f"c{rank}", 0)
        drawn.text(200, middle - 3, f"rank {rank}", "b")
        drawn.text(200, middle + 15, "forward, loss, backward: gradient", "dim")
        drawn.line(442, middle, 488, middle)
        drawn.line(572, middle, 618, middle)
        drawn.box(620, 45 + rank * 60, 180, 50)
        drawn.text(710, middle + 5, "the same weights", "m")
        top += height
    drawn.box(490, 45, 80, 230)
    drawn.text(530, 150, "mean", "m b")
    drawn.text(530, 168, "over all", "m dim")
    drawn.text(530, 184, "50 rows", "m dim")
    return drawn.svg()


#: Timelines: for each strategy its ranks, each a list of (start, end, what). What is the class of a box and its text.
COMPUTE, SEND, IDLE = "c0", "c2", "wait"


def _timeline(drawn: Picture, top: float, name: str, note: str, ranks: list[list[tuple[float, float, str]]]) -> None:
    drawn.text(20, top + 22, name, "b")
    drawn.text(20, top + 40, note, "dim")
    for number, spans in enumerate(ranks):
        for begin, end, kind in spans:
            thin = kind == SEND and any(b < end and e > begin for b, e, other in spans if other == COMPUTE)
            height, shift = (7, 17) if thin else (15 if kind == COMPUTE and _sends(spans) else 24, 0)
            drawn.box(230 + begin, top + number * 30 + shift, end - begin - 2, height, kind, 2)


def _sends(spans: list[tuple[float, float, str]]) -> bool:
    """Whether a rank sends while it computes."""
    return any(
        kind == SEND and any(b < end and e > begin for b, e, other in spans if other == COMPUTE)
        for begin, end, kind in spans
    )


def _steps(lengths: list[float], begin: float = 0) -> list[tuple[float, float, str]]:
    found, at = [], begin
    for length in lengths:
        found.append((at, at + length, COMPUTE))
        at += length
    return found


def strategies() -> str:
    """What two ranks do with each strategy, along the same time."""
    drawn = Picture(840, 520, "Timelines of two ranks with each strategy")
    for at, kind, label in ((230, COMPUTE, "compute a step"), (390, SEND, "exchange"), (520, IDLE, "wait")):
        drawn.box(at, 14, 18, 14, kind, 2)
        drawn.text(at + 26, 26, label, "dim")
    together = [(at + shift, at + shift + long, kind) for at in (0, 190, 380)
                for shift, long, kind in ((0, 100, COMPUTE), (100, 90, SEND))]  # fmt: skip
    slower = [(at + shift, at + shift + long, kind) for at in (0, 190, 380)
              for shift, long, kind in ((0, 80, COMPUTE), (80, 20, IDLE), (100, 90, SEND))]  # fmt: skip
    _timeline(drawn, 50, "sync", "gradients, in every step", [together, slower])
    piped = [*_steps([100] * 5), *((at, at + 90, SEND) for at in (100, 200, 300, 400))]
    _timeline(drawn, 130, "pipe", "gradients, while the next", [piped, piped])
    drawn.text(20, 184, "step computes", "dim")
    _timeline(drawn, 210, "gossip", "weights, with one partner", [
        [*_steps([100] * 5), *((at, at + 55, SEND) for at in (100, 200, 300, 400))],
        [*_steps([95, 100, 100, 100, 100], 5), *((at, at + 55, SEND) for at in (105, 205, 305, 405))],
    ])  # fmt: skip
    _timeline(drawn, 290, "local", "weights, once in many steps", [
        [*_steps([100] * 4), (400, 490, SEND), *_steps([80], 490)],
        [*_steps([90] * 4), (360, 400, IDLE), (400, 490, SEND), *_steps([80], 490)],
    ])  # fmt: skip
    _timeline(drawn, 370, "elastic", "with a center, each", [
        [*_steps([100] * 5), (200, 300, SEND), (400, 500, SEND)],
        [*_steps([160] * 3), (320, 420, SEND)],
    ])  # fmt: skip
    drawn.text(20, 424, "at its own pace", "dim")
    _timeline(drawn, 450, "server", "all weights, in every step", [
        [(at + s, at + s + n, k) for at in (0, 230) for s, n, k in ((0, 100, COMPUTE), (100, 130, SEND))],
        [(at + s, at + s + n, k) for at in (0, 290) for s, n, k in ((0, 160, COMPUTE), (160, 130, SEND))],
    ])  # fmt: skip
    return drawn.svg()


def faults() -> str:
    """A rank dies in a step, and the others do the step again."""
    drawn = Picture(840, 250, "Rank 2 of 4 dies in a step; the others drop that step and do it again with three ranks")
    columns = ((180, "step 41"), (340, "step 42"), (500, "agree"), (650, "step 42 again"), (780, "step 43"))
    for x, label in columns:
        drawn.text(x, 26, label, "b m")
    widths = {110: 140, 270: 140, 590: 120, 730: 100}
    for rank in range(4):
        y = 45 + rank * 46
        drawn.text(20, y + 22, f"rank {rank}", "b")
        drawn.box(110, y, widths[110], 32, "c0")
        if rank == 2:
            drawn.box(270, y, 70, 32, "c0")
            drawn.line(332, y + 4, 356, y + 28, tip=False, kind="bad")
            drawn.line(356, y + 4, 332, y + 28, tip=False, kind="bad")
            drawn.text(366, y + 21, "dies", "dim")
            continue
        drawn.box(270, y, widths[270], 32, "wait")
        drawn.box(430, y, 140, 32, "c2")
        drawn.box(590, y, widths[590], 32, "c0")
        drawn.box(730, y, widths[730], 32, "c0")
    drawn.text(340, 234, "undone: weights are put back", "dim m")
    drawn.text(500, 234, "who is left?", "dim m")
    drawn.text(700, 234, "all rows of the batch, on three ranks", "dim m")
    return drawn.svg()


def sharding() -> str:
    """What each of four ranks holds of a model and Adam, with each value of `--shard`."""
    drawn = Picture(1010, 262, "What four ranks hold of weights, sums of gradients and slots of Adam with each --shard")
    kinds = (("weights", "c0", 62), ("sums", "c1", 62), ("slots of Adam", "c3", 94))
    for number, (name, in_parts) in enumerate(
        (("none", ""), ("state", "c3"), ("gradients", "c1 c3"), ("weights", "c0 c1 c3"))
    ):
        at = 75.0 + number * 234
        drawn.text(at + 107, 22, f"--shard {name}", "b m")
        for label, kind, width in kinds:
            drawn.text(at + width / 2 - 2, 46, label, "dim m")
            for rank in range(4):
                y, whole = 58 + rank * 42, width - 4
                drawn.box(at, y, whole, 30, "box", 2)
                part, first = (whole / 4, rank * whole / 4) if kind in in_parts else (whole, 0)
                drawn.box(at + first, y, part, 30, kind, 2)
            at += width
    for rank in range(4):
        drawn.text(12, 58 + rank * 42 + 20, f"rank {rank}", "b")
    drawn.text(
        75, 246, "Filled: what a rank holds between steps. In a step, parts travel to where they are needed.", "dim"
    )
    return drawn.svg()


def step_time() -> str:
    """What two ranks do in a step, along the time, with the names of `matex-tf trace`."""
    drawn = Picture(860, 206, "Where a step's time goes: input, compute, wait for a slower rank, exchange, apply")
    drawn.text(80, 30, "one step", "b")
    drawn.line(152, 25, 744, 25)
    for rank, late in ((0, 0), (1, 70)):
        y, at = 44.0 + rank * 48, 80.0
        drawn.text(12, y + 20, f"rank {rank}", "b")
        for name, kind, width in (
            ("input", "c3", 70), ("compute", "c0", 230 + late), ("wait", "wait", 70 - late), ("pack", "c2", 50),
            ("network", "c2", 90), ("reduce", "c2", 70), ("apply", "c1", 84), ("input", "c3", 70),
        ):  # fmt: skip
            if width:
                drawn.box(at, y, width - 3, 30, kind, 2)
                drawn.text(at + width / 2 - 1, y + 20, name, "m")
            at += width
    drawn.text(80, 160, "compute: forward and backward. Rank 1 is slower, so rank 0 waits.", "dim")
    drawn.text(
        80, 178, "Yellow: the exchange of gradients. apply: the optimizer. input is longer if a rank makes", "dim"
    )
    drawn.text(80, 196, "its batches too slowly. matex-tf trace prints the milliseconds of each part.", "dim")
    return drawn.svg()


def labels() -> str:
    """A training step: what each of three ranks holds of each value, from the batch to the weights."""
    drawn = Picture(1010, 330, "A training step on three ranks: rows, then parts of sums, then whole values")
    values = (
        ("R", "weights", "c1", ""), ("S", "batch", "c0", ""), ("S", "activations", "c0", "layers"),
        ("S", "loss of each row", "c0", "loss"), ("P", "gradients, mean loss", "c2", "backward"),
        ("R", "gradients, logs", "c1", "allreduce"), ("R", "new weights", "c1", "optimizer"),
    )  # fmt: skip
    for column, (label, name, kind, op) in enumerate(values):
        x = 75.0 + column * 136
        drawn.box(x, 14, 26, 26, kind, 3)
        drawn.text(x + 13, 32, label, "b m")
        drawn.text(x + 34, 32, op and f"by {op}", "dim")
        drawn.text(x, 60, name, "dim")
        for rank in range(3):
            y = 74.0 + rank * 64
            drawn.box(x, y, 84, 48, "box", 2)
            top, height = (y + rank * 16, 16) if label == "S" else (y, 48)
            drawn.box(x, top, 84, height, kind, 2)
            if label == "P":
                drawn.text(x + 42, y + 29, f"term {rank + 1} of 3", "m")
        if op == "allreduce":
            drawn.box(x - 36, 74, 20, 176, "wait", 3)
            drawn.text(x - 26, 166, "Σ", "b m")
        elif op:
            for rank in range(3):
                drawn.line(x - 46, 98 + rank * 64, x - 6, 98 + rank * 64)
    for rank in range(3):
        drawn.text(12, 104 + rank * 64, f"rank {rank}", "b")
    for x, label, kind, words in (
        (75, "R", "c1", "the whole value, the same on every rank"), (400, "S", "c0", "this rank's rows of it"),
        (600, "P", "c2", "a term: the value is the sum over the ranks"),
    ):  # fmt: skip
        drawn.box(x, 274, 22, 22, kind, 3)
        drawn.text(x + 11, 290, label, "b m")
        drawn.text(x + 32, 290, words, "dim")
    drawn.text(
        75,
        320,
        "The ranks exchange once here, at Σ. Left of it each computes its own rows. Right of it all compute the same.",
        "dim",
    )
    return drawn.svg()


def gpus() -> str:
    """The way of a gradient from a GPU to its optimizer; the numbers are those of docs/gpus-explained.md."""
    drawn = Picture(820, 260, "From the GPU through the memory of the node, and back")
    for x, width, words in ((10, 170, "GPU of a rank"), (240, 370, "memory of its node"), (670, 140, "other nodes")):
        drawn.text(x + width / 2, 24, words, "b m")
        drawn.box(x, 36, width, 214, "box", 6)
    places = (
        (25, 70, 140, ("gradients",)), (25, 180, 140, ("optimizer", "applies them")),
        (255, 70, 150, ("pinned memory", "of TensorFlow")), (455, 70, 140, ("bucket of a rank", "in /dev/shm")),
        (455, 180, 140, ("sum of the node", "in /dev/shm")), (685, 180, 110, ("their sums,", "by MPI")),
    )  # fmt: skip
    for x, y, width, lines in places:
        drawn.box(x, y, width, 50, "wait", 3)
        for number, line in enumerate(lines):
            drawn.text(x + width / 2, y + 30 + 18 * number - 9 * (len(lines) - 1), line, "m")
    for *points, x, y, words in (
        (167, 95, 251, 95, 210, 88, "1 DMA"), (407, 95, 451, 95, 430, 88, "2"), (525, 122, 525, 176, 538, 155, "3"),
        (597, 198, 681, 198, 640, 191, "4"), (683, 212, 599, 212, 640, 230, ""),
        (453, 205, 169, 205, 352, 198, "5 copy from pageable memory"),
    ):  # fmt: skip
        drawn.line(*points)
        drawn.text(x, y, words, "m dim")
    return drawn.svg()


PICTURES = {
    "batch.svg": batch,
    "gpus.svg": gpus,
    "labels.svg": labels,
    "strategies.svg": strategies,
    "faults.svg": faults,
    "sharding.svg": sharding,
    "step_time.svg": step_time,
}


def main() -> None:
    for name, draw in PICTURES.items():
        (ROOT / "docs" / "images" / name).write_text(draw())


if __name__ == "__main__":
    main()
