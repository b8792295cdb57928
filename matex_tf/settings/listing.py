"""All settings by their topics, for command lines, their help and docs/settings.md."""

from __future__ import annotations

from typing import NamedTuple

from matex_tf.features import registry
from matex_tf.settings.declaration import Option
from matex_tf.settings.run_settings import options

#: The topic of `--strategy`.
OF_STRATEGIES = "strategy"
#: The topics, in the order of the help and of docs/settings.md, and the page that says more about each.
PAGES = {
    "data": "docs/data.md",
    "files and output": "docs/files.md",
    OF_STRATEGIES: "docs/strategies.md",
    "exchange": "docs/exchange.md",
    "faults": "docs/faults.md",
    "the run": "docs/running.md",
}


class Group(NamedTuple):
    """A topic, the page that says more about it, and its settings."""

    title: str
    page: str
    options: list[Option]


def by_group() -> list[Group]:
    """The settings of each topic; those of a strategy come after that of strategies, those of features at the end."""
    every = options()
    pages = {**PAGES, **{topic: page for one in registry.found().values() for topic, page in one.pages.items()}}
    titles: list[str] = []
    for title in pages:
        titles.append(title)
        if title == OF_STRATEGIES:
            titles += dict.fromkeys(one.group for one in every if one.group not in pages)
    return [
        Group(title, pages.get(title, pages[OF_STRATEGIES]), [one for one in every if one.group == title])
        for title in titles
    ]


def tables() -> str:
    """The settings as Markdown, a table for each topic: what docs/settings.md has below its introduction."""
    lines = []
    for title, page, group in by_group():
        name = page.removeprefix("docs/")
        lines += [f"## {title.capitalize()}", "", f"More: [{name}]({name}).", ""]
        lines += ["| flag | environment | default | what it does |", "|---|---|---|---|"]
        lines += [f"| `{one.flag}` | `{one.variable}` | `{one.default_shown}` | {one.text} |" for one in group]
        lines.append("")
    return "\n".join(lines[:-1])
