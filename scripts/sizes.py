"""Lines of Python that are not blank: of the core, and of each feature. `python scripts/sizes.py` prints them."""

from __future__ import annotations

from pathlib import Path

from rooms import ROOT, modules


def lines(path: Path) -> int:
    """The lines of a file that are not blank."""
    return sum(bool(line.strip()) for line in path.read_text().splitlines())


def sizes() -> dict[str, int]:
    """Lines of the core, then of each feature from the largest to the smallest."""
    features = {path.parent.name: 0 for path in (ROOT / "matex_tf" / "features").glob("*/__init__.py")}
    found = {"core": 0, **features}
    for name, path in modules().items():
        parts = name.split(".")
        feature = parts[1] if parts[0] == "features" and len(parts) > 1 and parts[1] in features else "core"
        found[feature] += lines(path)
    return {"core": found.pop("core"), **dict(sorted(found.items(), key=lambda one: -one[1]))}


if __name__ == "__main__":
    for name, count in sizes().items():
        print(f"{name:10}{count:8,}")
