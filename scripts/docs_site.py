"""A hook of mkdocs: puts into the site what lies outside docs/, and makes links to it work there.

README.md becomes the first page. Pictures of the rooms are drawn from the imports (`rooms.py`), and all errors are
found in the source (`messages.py`).
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import messages  # noqa: E402
import rooms  # noqa: E402
from site_lists import four_spaces  # noqa: E402

#: Files outside docs/, and the pages that they become.
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contribute.md"}
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files, config):
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=moved_links((ROOT / source).read_text(), source, page)))
    for example in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{example.name}", abs_src_path=str(example)))
    for name, picture in rooms.pictures().items():
        files.append(File.generated(config, f"images/{name}", content=picture))
    return files


def on_page_markdown(markdown, page, config, files):
    if page.file.src_uri in PAGES.values():
        return four_spaces(markdown)
    if page.file.src_uri == "messages.md":
        markdown += f"\n{messages.all_errors()}"
    return four_spaces(moved_links(markdown, f"docs/{page.file.src_uri}", page.file.src_uri))


def moved_links(text, source, page):
    """The text of a page with links to files of the repository turned into links to pages of the site."""

    def moved(match):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        place = PAGES.get(target, target.removeprefix("docs/"))
        return f"{match[1]}{posixpath.relpath(place, posixpath.dirname(page) or '.')}{match[3] or ''})"

    return LINK.sub(moved, text)
