"""A timeline as one HTML file: lanes for ranks, where a step's time went, and what to try. It needs nothing else."""

from __future__ import annotations

import html
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matex_tf.planning.timeline import EXCHANGE, Step, settled

#: Steps of a rank that the lanes hold, those in the middle of the run.
STEPS_SHOWN = 40

_TEMPLATE = Path(__file__).with_name("timeline.html")


def render(steps: Sequence[Step], usual: Mapping[int, Sequence[Step]], colours: Mapping[str, str], name: str) -> str:
    """The page.

    Args:
        steps: all of them, those of a rank in their order.
        usual: of each rank the steps over which means are taken.
        colours: of each part of a step.
        name: of the run, for the title.
    """
    ranks = sorted(usual)
    lanes = {rank: _middle([step for step in steps if step.rank == rank]) for rank in ranks}
    zero = min((lane[0].begin for lane in lanes.values() if lane), default=0.0)
    data = {
        "colours": dict(colours),
        "lanes": [{"rank": rank, "steps": [_drawn(step, zero) for step in lanes[rank]]} for rank in ranks],
    }
    rows = "".join(_row(rank, usual[rank], colours) for rank in ranks)
    head = "".join(f"<th>{html.escape(part)}</th>" for part in ("rank", "step", *colours, "of the step"))
    hints = "".join(f"<li>{html.escape(hint)}</li>" for hint in advice(steps, usual))
    page = _TEMPLATE.read_text(encoding="utf-8")
    for place, text in (
        ("@TITLE@", html.escape(name)),
        ("@HEAD@", head),
        ("@ROWS@", rows),
        ("@HINTS@", hints),
        ("@DATA@", json.dumps(data, separators=(",", ":")).replace("</", "<\\/")),
    ):
        page = page.replace(place, text)
    return page


def _middle(own: Sequence[Step]) -> Sequence[Step]:
    begin = max(0, (len(own) - STEPS_SHOWN) // 2)
    return own[begin : begin + STEPS_SHOWN]


def _drawn(step: Step, zero: float) -> list[Any]:
    """What, begin and length in microseconds, and the same for each span."""
    spans = [[part, round(begin - zero, 1), round(length, 1), what] for part, begin, length, what in step.spans]
    return [step.what, round(step.begin - zero, 1), round(step.length, 1), spans]


def _row(rank: int, own: Sequence[Step], colours: Mapping[str, str]) -> str:
    means = {part: statistics.fmean(step.parts.get(part, 0.0) for step in own) / 1e3 for part in colours}
    whole = statistics.fmean(step.length for step in own) / 1e3
    bar = "".join(
        f'<span style="width:{100 * mean / max(sum(means.values()), 1e-9):.2f}%;background:{colours[part]}" '
        f'title="{html.escape(part)} {mean:.2f} ms"></span>'
        for part, mean in means.items()
    )
    cells = "".join(f"<td>{mean:.2f}</td>" for mean in means.values())
    return f'<tr><th scope="row">{rank}</th><td>{whole:.2f}</td>{cells}<td class="bar"><div>{bar}</div></td></tr>'


def advice(steps: Sequence[Step], usual: Mapping[int, Sequence[Step]]) -> list[str]:
    """What to try, most telling first, by where time goes; what each sentence says is measured in this timeline.

    Args:
        steps, usual: as for `render`.
    """

    def part(rank: int, *names: str) -> float:
        own = usual[rank]
        spent = sum(step.parts.get(name, 0.0) for step in own for name in names)
        return spent / max(sum(step.length for step in own), 1e-9)

    ranks = sorted(usual)
    waits = {rank: part(rank, "wait") for rank in ranks}
    longest, shortest = max(ranks, key=waits.__getitem__), min(ranks, key=waits.__getitem__)
    network = max(part(rank, "network") for rank in ranks)
    exchange = max(part(rank, *EXCHANGE, "other") for rank in ranks)
    between = max(_between(steps, rank) for rank in ranks)
    length = statistics.fmean(step.length for rank in ranks for step in usual[rank]) / 1e3
    found = []
    if between > 0.2:
        found.append(
            f"{between:.0%} of the time lies between steps: in input and callbacks. Prefetch the data, and see "
            "docs/data.md for which part of the input is divided among ranks."
        )
    if waits[longest] > 0.15 and waits[shortest] < 0.5 * waits[longest]:
        found.append(
            f"The others wait for rank {shortest}: rank {longest} waits {waits[longest]:.0%} of a step, rank "
            f"{shortest} {waits[shortest]:.0%}. See what else runs on its host, and whether it has as many cores."
        )
    elif waits[shortest] > 0.25:
        found.append(
            f"All ranks wait for one another at least {waits[shortest]:.0%} of a step, none of them for the same one: "
            "they share cores, among them or with other processes. Start fewer ranks, or keep the machine free."
        )
    if network > 0.2:
        found.append(
            f"The network takes {network:.0%} of a step. --codec int8 sends a quarter of the bytes, --schedule "
            "concurrent sends while ranks compute, and matex-tf plan predicts which strategy is fastest."
        )
    if exchange > 0.4 and length < 5:
        found.append(
            f"A step takes {length:.1f} ms, {exchange:.0%} of it for the exchange: batches are small for so many "
            "ranks. A larger batch_size, or fewer ranks, makes better use of them."
        )
    if not found:
        computing = min(part(rank, "compute", "apply") for rank in ranks)
        found.append(f"Ranks compute for {computing:.0%} of a step: nothing to mend here. More ranks will pay.")
    return found


def _between(steps: Sequence[Step], rank: int) -> float:
    """The part of the time of a rank that lies between its steps, the first ones left out."""
    own = settled([step for step in steps if step.rank == rank])
    whole = own[-1].begin + own[-1].length - own[0].begin
    return max(0.0, 1 - sum(step.length for step in own) / whole) if whole > 0 else 0.0
