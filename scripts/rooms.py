"""Pictures of who imports whom, as SVG, drawn from the imports themselves.

`python scripts/rooms.py DIRECTORY` writes them.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("matex_tf", "readers", "patches")
FOR_ALL = {"errors", "settings", "state"}  # what every room may import: not in the pictures

WIDTH, HEIGHT, GAP, STOREY, MARGIN = 150, 46, 26, 104, 60  # pixels


@cache
def modules() -> dict[str, Path]:
    """The file of each module, by its name without `matex_tf.`."""
    found = {}
    for path in sorted(path for top in TOPS for path in (ROOT / top).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[1:] if parts[0] == "matex_tf" else parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imported(path: Path, for_types: bool = False) -> frozenset[str]:
    """The modules of matex_tf that a file imports when it is loaded or when a function of it runs.

    Args:
        for_types: whether those count that it imports for the type checker alone.
    """
    tree = ast.parse(path.read_text())
    left_out = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not for_types
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == "matex_tf"
            and id(node) not in left_out
        ):
            package = (node.module or "").partition(".")[2]
            for alias in node.names:
                name = f"{package}.{alias.name}" if package else alias.name
                found.add(name if name in modules() else package)
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.split(".")[0] == "matex_tf"}
    return frozenset(found - {""})


def arrows(room_of) -> tuple[dict[str, int], dict[str, set[str]]]:
    """Rooms with the number of their modules, and whom each imports.

    Args:
        room_of: the room of a module, by its name; "" for a module that is not in the picture.
    """
    sizes: dict[str, int] = {}
    uses: dict[str, set[str]] = {}
    for name, path in modules().items():
        if not (room := room_of(name)):
            continue
        sizes[room] = sizes.get(room, 0) + (path.name != "__init__.py")
        others = {room_of(other) for other in imported(path) if other.split(".")[0] not in FOR_ALL}
        uses.setdefault(room, set()).update(others - {room, ""})
    return sizes, uses


def storeys(uses: dict[str, set[str]]) -> dict[str, int]:
    """The storey of each room: one above the highest that it imports. What imports in a circle shares a storey."""
    reach = {room: set(others) for room, others in uses.items()}
    for middle in uses:
        for room in uses:
            if middle in reach[room]:
                reach[room] |= reach[middle]
    found: dict[str, int] = {}

    def storey(room: str) -> int:
        if room not in found:
            below = {other for other in reach[room] if room not in reach[other]}
            found[room] = max((storey(other) + 1 for other in below), default=0)
        return found[room]

    for room in uses:
        storey(room)
    return found


def direct(uses: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows without those that others make plain: a to c where a goes to b and b to c."""
    reach = {room: set(others) for room, others in uses.items()}
    for middle in uses:
        for room in uses:
            if middle in reach[room]:
                reach[room] |= reach[middle]
    return {
        room: {
            other
            for other in others
            if room in reach[other]
            or not any(other in reach[third] for third in others - {other} if other not in (third,))
        }
        for room, others in uses.items()
    }


_LINE = 'stroke="#888" fill="none" marker-end="url(#tip)"'


def _arrow(begin: tuple[float, float], end: tuple[float, float], number: int) -> str:
    """The path of an arrow: straight to the next storey, and around what lies in between."""
    (x, y), (to_x, to_y) = begin, end
    if to_y - y == STOREY:
        return f"M{x + WIDTH / 2:.0f} {y + HEIGHT:.0f} L{to_x + WIDTH / 2:.0f} {to_y:.0f}"
    side = -1 if to_x < x or (to_x == x and number % 2) else 1
    bend = side * (30 + 20 * abs(to_y - y) / STOREY)
    x, to_x = (place + (WIDTH if side > 0 else 0) for place in (x, to_x))
    y, to_y = y + HEIGHT / 2, to_y + HEIGHT / 2
    return f"M{x:.0f} {y:.0f} C{x + bend:.0f} {y:.0f} {to_x + bend:.0f} {to_y:.0f} {to_x:.0f} {to_y:.0f}"


def picture(title: str, sizes: dict[str, int], uses: dict[str, set[str]]) -> str:
    """An SVG: a box for each room, in storeys, and an arrow to each room that it imports."""
    levels = storeys(uses)
    rows = [sorted(room for room in uses if levels[room] == level) for level in range(max(levels.values()) + 1)]
    wide = max(len(row) for row in rows) * (WIDTH + GAP) + GAP + 2 * MARGIN
    high = len(rows) * STOREY + 30
    place = {}
    for level, row in enumerate(rows):
        left = (wide - len(row) * (WIDTH + GAP) + GAP) / 2
        for number, room in enumerate(row):
            place[room] = (left + number * (WIDTH + GAP), 34 + (len(rows) - 1 - level) * STOREY)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" '
        'font-family="sans-serif" font-size="13" text-anchor="middle">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#888"/></marker></defs>',
        f'<text x="{wide / 2:.0f}" y="18" fill="#888">{escape(title)}</text>',
    ]
    for room, others in direct(uses).items():
        for number, other in enumerate(sorted(others, key=lambda other: (levels[other], other))):
            lines.append(f'<path d="{_arrow(place[room], place[other], number)}" {_LINE}/>')
    for room, (x, y) in place.items():
        count = f"{sizes[room]} module{'s' * (sizes[room] != 1)}"
        lines.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="#e8eaf6" stroke="#3f51b5"/>'
            f'<text x="{x + WIDTH / 2:.0f}" y="{y + 20:.0f}" fill="#111" font-weight="bold">{escape(room)}</text>'
            f'<text x="{x + WIDTH / 2:.0f}" y="{y + 37:.0f}" fill="#555" font-size="11">{count}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def pictures() -> dict[str, str]:
    """The pictures of docs/architecture.md, by file name."""

    def top(name: str) -> str:
        first = name.split(".")[0]
        if first in FOR_ALL:
            return ""
        feature = ".".join(name.split(".")[:2])
        if first == "features" and feature != first and modules()[feature].name == "__init__.py":
            return feature.replace(".", "/") + "/"
        package = modules().get(first)
        return f"{first}/" if package is not None and package.name == "__init__.py" and first else ""

    def patches(name: str) -> str:
        parts = name.split(".")
        if parts[0] != "patches" or len(parts) < 2:
            return ""
        return f"{parts[1]}/" if modules()[f"patches.{parts[1]}"].name == "__init__.py" else ""

    return {
        "rooms.svg": picture(
            "who imports whom: an arrow goes to what is imported, storeys from the ground up", *arrows(top)
        ),
        "patches.svg": picture("who imports whom in patches/", *arrows(patches)),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for file, svg in pictures().items():
        (folder / file).write_text(svg)
        print(folder / file)
