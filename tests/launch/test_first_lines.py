"""What a user sees of matex_tf when a plain Keras script starts: two lines, and those of the README."""

import re
import shutil
from pathlib import Path

import pytest
from jobs import LAUNCHER, Job

pytestmark = pytest.mark.timeout(150)

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.py").is_file())


@pytest.mark.parametrize("ranks", [2])
def test_a_plain_script(ranks, tmp_path):
    """Two lines on standard error, nothing of ours on standard output, and losses as the README prints them."""
    shutil.copy(ROOT / "examples" / "first.py", tmp_path)
    ended = Job([LAUNCHER, "run", "-n", str(ranks), "first.py"], tmp_path).end()
    assert ended.code == 0, ended.err
    readme = (ROOT / "README.md").read_text()
    printed = readme.partition("$ matex-tf run -n 4 examples/first.py\n")[2].partition("```")[0].splitlines()
    # How many cores the ranks share is the machine's.
    wanted = [re.sub(r" \(4 ranks share .*", "", line).replace("4 ranks", f"{ranks} ranks") for line in printed[:2]]
    shown = [line for line in ended.err.splitlines() if line.startswith("matex_tf")]
    assert [re.sub(r"\d+ threads? each.*", "1 thread each", line) for line in shown] == wanted
    found, said = ([float(number) for number in re.findall(r"\d\.\d+", text)] for text in (ended.out, printed[2]))
    assert ended.out.startswith("{'loss': [") and found == pytest.approx(said, rel=1e-4)
