"""Docs name tests: each of them is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

#: `tests/unit/test_a.py`, `test_a.py::test_b`, and `::test_b` or `…::test_b` after one of those.
REFERENCE = re.compile(r"`(?=[^`\n]*test_)(tests/(?:\w+/)+)?(test_\w+\.py)?…?(?:::(test_\w+))?`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_are_there(page):
    missing, file = [], ""
    for folder, name, function in REFERENCE.findall(page.read_text()):
        file = folder + name or file
        path = next(ROOT.glob(file if "/" in file else f"tests/**/{file}"), ROOT)
        if not path.is_file() or (function and not re.search(rf"^def {function}\(", path.read_text(), re.MULTILINE)):
            missing.append(f"{file}::{function}")
    assert not missing
