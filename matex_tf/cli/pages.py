"""`matex-tf help PAGE`: the pages of the docs, whose names messages give. A wheel has them in matex_tf/docs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import matex_tf
from matex_tf.errors import SettingError
from matex_tf.job import suggestions

PACKAGE = Path(matex_tf.__file__).resolve().parent


def text(name: str, commands: Iterable[str] = ()) -> str:
    """A page in Markdown.

    Args:
        name: of the page, such as "docs/loops.md", or "loops" for short.
        commands: what may have been meant too.

    Raises:
        SettingError: there is no such page.
    """
    folder = PACKAGE / "docs" if (PACKAGE / "docs").is_dir() else PACKAGE.parent / "docs"  # that of a checkout
    pages = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.md")}
    short = name.removeprefix("docs/").removesuffix(".md")
    if short not in pages:
        near = suggestions.nearest(short, [*commands, *pages])
        raise SettingError(f"there is no command and no page {name}{near}; matex-tf help lists the commands.")
    return pages[short].read_text(encoding="utf-8")


def show(name: str, commands: Iterable[str]) -> None:
    """Print a page; on a terminal with its tables drawn. Args: see `text`.

    Raises:
        SettingError: there is no such page.
    """
    page = text(name, commands)
    if not sys.stdout.isatty():
        print(page)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(page, hyperlinks=False))
