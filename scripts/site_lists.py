"""Lists of the docs as the site needs them: what belongs to an item is indented by four spaces there.

Without this each step of a guide that has a code block would begin a list of its own, and have the number 1.
"""

from __future__ import annotations

import re

MARK = re.compile(r"(\d+\.|-) +(?=\S)")
FENCE = re.compile(r"(`{3,})")


def four_spaces(text: str) -> str:
    """The text of a page, with what belongs to an item of a list indented by four spaces more than its mark."""
    lines, width, fence = [], 0, ""
    for line in text.splitlines():
        begins = FENCE.match(line)
        if fence or begins:
            fence, width = "" if line.strip() == fence else fence or begins[1], 0
            lines.append(line)
            continue
        mark = MARK.match(line)
        if mark:
            width = len(mark[0])
        elif line.strip() and not line.startswith(" " * width):
            width = 0
        lines.append(" " * (4 - width) + line if width and not mark and line.strip() else line)
    return "\n".join(lines)
