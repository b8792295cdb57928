"""The page of `scripts/bench all`: one HTML file with tables and plots, which needs no other file."""

from __future__ import annotations

import base64
import html as markup
import io
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import tables
from benchmarks.compare import figure
from matex_tf.errors import MissingPackage
from matex_tf.planning import plotting

_STYLE = """
body { font: 15px/1.45 sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .5em 0 1em; font-variant-numeric: tabular-nums }
th, td { padding: .15em .7em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
th { border-bottom: 1px solid #888 } .label { text-align: left } .failed, .stopped { color: #b00 }
code, pre { font-size: 13px } pre { overflow-x: auto; background: #f6f6f6; padding: .6em } img { max-width: 100% }
"""


def html(report: Mapping[str, Any]) -> str:
    """The page of a report, as `scripts/bench all` writes it into report.json."""
    return "\n".join(_lines(report))


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    say = markup.escape
    yield "<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n<title>matex_tf: benchmarks</title>"
    yield f"<style>{_STYLE}</style>\n<h1>matex_tf: benchmarks</h1>"
    on = report["machine"]
    yield (
        f"<p>{say(report['begun'])}, in {report['minutes']:g} minutes, on {on['cores']} cores "
        f"({say(on['processor'])}) with {on['memory_gib']} GiB; load average {report['load']:.1f} before it began. "
        f"{say(', '.join(f'{name} {version}' for name, version in report['versions'].items()))}.</p>"
    )
    rows = [
        [f"<a href='#{one['part']}'>{one['part']}</a>", one["status"], f"{one['seconds'] / 60:.1f}", say(one["why"])]
        for one in report["parts"]
    ]
    yield _table(["part", "", "minutes", ""], rows, 2)
    for one in report["parts"]:
        if one["status"] == "left out":
            continue
        yield f"<h2 id='{one['part']}'>{one['part']}</h2>"
        if one["why"]:
            yield f"<p class='{one['status']}'>{one['status']} {say(one['why'])}</p>"
        yield f"<p><code>{say(one['command'])}</code>, at a load average of {one['load']:.1f}</p>"
        for kept in one["tables"]:
            table = tables.Table(**kept)
            yield f"<h3>{say(table.title)}{say(f' ({table.note})') if table.note else ''}</h3>"
            yield _table([*map(say, table.columns)], [[*map(say, row)] for row in table.rows], table.labels)
            yield plot(table)
        yield f"<details><summary>what it printed</summary><pre>{say(one['said'])}</pre></details>"


def _table(columns: list[str], rows: list[list[str]], labels: int) -> str:
    def line(cells: list[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=label' if place < labels else ''}>{cell}</{tag}>" for place, cell in enumerate(cells)
        )

    body = "\n".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table>\n<tr>{line(columns, 'th')}</tr>\n{body}\n</table>"


def plot(table: tables.Table) -> str:
    """An image of the columns whose figures are better where they are less; empty where there are none."""
    try:
        pyplot = plotting.pyplot()
    except MissingPackage as error:
        return f"<p>{markup.escape(str(error))}</p>"
    panels: list[tuple[str, list[str], list[Any]]] = []
    for column in table.less[:4]:
        place, spread = table.columns.index(column), table.spreads.get(column)
        beside = table.columns.index(spread) if spread else None
        pairs = [(row, figure(row[place], "" if beside is None else row[beside])) for row in table.rows]
        drawn = [(", ".join(row[: table.labels]), one) for row, one in pairs if one]
        if drawn:
            panels.append((column, [name for name, _ in drawn], [one for _, one in drawn]))
    if not panels:
        return ""
    height = 0.9 + 0.24 * max(len(names) for _, names, _ in panels)
    across, down = min(2, len(panels)), -(-len(panels) // 2)
    canvas, axes = pyplot.subplots(down, across, figsize=(5.5 * across, down * height), squeeze=False)
    for place in axes.flat[len(panels) :]:
        place.set_visible(False)
    for place, (column, names, figures) in zip(axes.flat, panels, strict=False):
        values = [one.value for one in figures]
        place.barh(range(len(values)), values, color="tab:blue", alpha=0.8)
        for number, one in enumerate(figures):
            if one.low is not None:
                place.plot([one.low, one.high], [number, number], color="black", linewidth=1)
        place.set_yticks(range(len(names)), names, fontsize=8)
        place.invert_yaxis()
        place.set_xlim(left=0)
        place.set_xlabel(column, fontsize=8)
    canvas.tight_layout()
    image = io.BytesIO()
    canvas.savefig(image, format="svg")
    pyplot.close(canvas)
    return f"<img alt='{markup.escape(table.title, quote=True)}' src='data:image/svg+xml;base64,{_text(image)}'>"


def _text(image: io.BytesIO) -> str:
    return base64.b64encode(image.getvalue()).decode()
