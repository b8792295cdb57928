"""The example scripts that read files, as users would start them: four ranks, each with its own part."""

import gzip
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jobs import LAUNCHER, Job

from matex_tf.core.row_partition import Interleaving, span

pytestmark = pytest.mark.variants(1)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# script, its argument below the directory of make_data.py, what the last line must match, and the least it must say
SCRIPTS = [
    ("higgs_like_csv.py", "higgs.csv", r"AUC ([\d.]+)", 0.75),
    ("digits_hdf5.py", "digits.h5", r"accuracy ([\d.]+) of 297 digits", 0.8),
    ("field_netcdf.py", "field.nc", r"r2 ([\d.]+)", 0.8),
    ("lenet_mnist.py", "", r"Test accuracy: ([\d.]+)", 0.6),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What examples/make_data.py writes."""
    directory = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, EXAMPLES / "make_data.py", directory], check=True)
    return directory


@pytest.mark.parametrize(("script", "file", "pattern", "least"), SCRIPTS, ids=[script for script, *_ in SCRIPTS])
def test_example(files, tmp_path, server, script, file, pattern, least):
    """The script learns; all four ranks hold rows of their own."""
    command = [LAUNCHER, "run", "-n", "4", str(EXAMPLES / script), str(files / file)]
    ended = Job(command, tmp_path, **server.environ).end(240)
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    found = re.search(pattern, ended.out)
    assert found and float(found[1]) > least, f"{ended.out}\n{ended.err}"
    if script != "digits_hdf5.py":  # which trains on a pipeline
        assert "ranks has its part" in ended.err and "holds rows of its own" not in ended.err


@pytest.mark.variants(0)
def test_session(files, tmp_path, server):
    """LeNet in a session on four ranks says what it says on one that is given the rows in the same order."""
    ordered = tmp_path / "ordered"
    shutil.copytree(files, ordered)
    for name, header in (("images-idx3", 16), ("labels-idx1", 8)):
        path = ordered / f"train-{name}-ubyte.gz"
        content = gzip.decompress(path.read_bytes())
        rows = np.frombuffer(content[header:], np.uint8).reshape(1500, -1)
        counts = [high - low for low, high in (span(1500, rank, 4) for rank in range(4))]
        path.write_bytes(gzip.compress(content[:header] + rows[Interleaving(counts).order(100)].tobytes()))
    said = {}
    for ranks, directory in ((1, ordered), (4, files)):
        command = [LAUNCHER, "run", "-n", str(ranks), str(EXAMPLES / "lenet_session.py"), str(directory)]
        ended = Job(command, tmp_path, **server.environ).end(240)
        assert ended.code == 0, f"{ended.out}\n{ended.err}"
        said[ranks] = [float(number) for number in re.findall(r"(?:loss|:) ([\d.]+)", ended.out)]
        assert said[ranks][-3] == 60 and said[ranks][-1] > 0.7, ended.out
    assert len(said[1]) == 7
    # Rounding grows with momentum: a few parts in 10^4 of the third epoch's loss may be a few in 10^2 two epochs later.
    np.testing.assert_allclose(said[4][:3], said[1][:3], rtol=2e-3)
    np.testing.assert_allclose(said[4][3:], said[1][3:], rtol=0.05)


@pytest.mark.variants(0)
def test_the_second_tutorial(tmp_path, server):
    """Its scripts print what docs/tutorial-table.md shows, on three ranks."""
    page = (EXAMPLES.parent / "docs" / "tutorial-table.md").read_text()
    make, train = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    subprocess.run([sys.executable, "-c", make], cwd=tmp_path, check=True)
    (tmp_path / "train.py").write_text(train)
    ended = Job([LAUNCHER, "run", "-n", "3", "train.py"], tmp_path, **server.environ).end(240)
    shown = page.partition("## 3. Three ranks")[2]
    for line in ("mean of the columns", "matex_tf: flowers.csv: "):
        (there,) = [one for one in shown.splitlines() if one.startswith(line)]
        assert there in ended.out + ended.err, ended
    assert float(re.search(r"accuracy ([\d.]+)", ended.out)[1]) > 0.85, ended
