"""The example scripts that read files, as users would start them: four ranks, each with its own part."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import LAUNCHER, Job

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

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
def test_example(files, tmp_path, script, file, pattern, least):
    """The script learns; all four ranks hold rows of their own."""
    command = [LAUNCHER, "run", "-n", "4", str(EXAMPLES / script), str(files / file)]
    ended = Job(command, tmp_path).end(240)
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    found = re.search(pattern, ended.out)
    assert found and float(found[1]) > least, f"{ended.out}\n{ended.err}"
    if script != "digits_hdf5.py":  # which trains on a pipeline
        assert "each rank holds rows of its own" in ended.err
