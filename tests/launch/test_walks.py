"""The walks through the code that docs/architecture.md shows are those that are printed, and none becomes longer."""

from pathlib import Path

import pytest
from jobs import LAUNCHER, Job

ROOT = Path(__file__).resolve().parents[2]
#: Of each: the words of the launcher, and how many files it may enter.
WALKS = {
    "gradient": (["run", "-n", "2"], 11),
    "row": (["run", "-n", "2"], 22),
    "death": (["run", "-n", "3", "--faults", "shrink"], 8),
}


@pytest.mark.parametrize("walk", WALKS)
def test_as_documented(server, tmp_path, walk):
    """The page has the lines that the command there prints."""
    words, most = WALKS[walk]
    command = [*words, "scripts/walks.py", walk]
    ended = Job([LAUNCHER, *words, str(ROOT / "scripts" / "walks.py"), walk], tmp_path, **server.environ).end(100)
    assert ended.code == 0, ended
    lines = ended.out.splitlines()
    assert f": {len(lines) - 1} files" in lines[0] and len(lines) - 1 <= most, ended.out
    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = page.split(f"matex-tf {' '.join(command)}\n```\n\n```\n")[1].split("\n```")[0]
    assert ended.out.strip() == shown, ended.out
