"""Versions of Keras and TensorFlow: those that nobody has tried are named, and none is installed unasked."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from matex_tf.core import world
from matex_tf.errors import NameMoved
from matex_tf.patches import table
from matex_tf.patches.common import wrapping
from matex_tf.patches.imports import tried

HERE = Path(__file__).resolve().parents[2]


class Package:
    """What looks like keras."""

    __name__ = "keras"

    def __init__(self, folder, version):
        self.__path__, self.__version__ = [str(folder)], version


@pytest.fixture
def package(tmp_path):
    """Makes a folder with every module that patches are for, but for some."""

    def make(*without, version="3.15.1"):
        for name, _ in (*table.PATCHES, *table.of_features(), *table.recording()):
            if name.startswith("keras.") and name not in without:
                path = tmp_path.joinpath(*name.split(".")[1:])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.with_suffix(".py").touch()
        return Package(tmp_path, version)

    return make


@pytest.fixture
def two_ranks(monkeypatch):
    monkeypatch.setattr(type(world.current()), "is_single", False)


@pytest.mark.parametrize("version, name", [("3.15.1", "nn"), ("3.16.0", "ops.nn")])
def test_a_module_that_is_gone(package, version, name):
    """A patch for it would never be applied: an error names it, and the versions that were tried."""
    gone = f"keras.src.backend.tensorflow.{name}"
    with pytest.raises(NameMoved, match=rf"keras {version} has no module {gone}, .*3\.3 to"):
        tried.install(package(gone, version=version))


def test_a_module_that_has_moved(package):
    """Newer versions lack what older ones have; without a word."""
    tried.install(package(*tried.UNTIL, version="3.16.0"))


def test_a_module_that_is_new(package):
    """Older versions lack what newer ones have; without a word."""
    tried.install(package(*tried.SINCE, version="3.3.3"))
    with pytest.raises(NameMoved):
        tried.install(package(*tried.SINCE, version="3.15.0"))


@pytest.mark.parametrize("version", ["3.16.0.dev2026102704", "3.17.0", "3.2.1", "4.0"])
def test_an_untried_version(package, two_ranks, capsys, version):
    """A line on rank 0."""
    tried.install(package(version=version))
    assert ("none of the versions" in capsys.readouterr().err) == (not version.startswith("3.16"))


def test_every_module_is_there():
    """In the Keras that is installed here: of a package in another process, as a script imports it."""
    code = """
        import importlib.util, pathlib, re
        from matex_tf.patches.imports import tried
        for package in ("keras", "tf_keras"):
            places = list(importlib.util.find_spec(package).submodule_search_locations)
            file = pathlib.Path(places[0], "src", "version.py" if package == "keras" else "__init__.py")
            version = re.search('__version__ = "(.+)"', file.read_text())[1]
            assert tried.missing(places, package, version) == [], package
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=HERE)


def test_what_is_installed_is_what_was_tried():
    """The bounds in setup.py, in the package of Conda and in the message are those of the table."""
    low, high = (int(part.split(".")[1]) for part in wrapping.TRIED.split(" to "))
    assert f"<3.{high + 1}" in re.search(r'KERAS = "(.+?)"', (HERE / "setup.py").read_text()).group(1)
    assert f"keras >=3.{low},<3.{high + 1}" in (HERE / "packaging" / "conda" / "meta.yaml").read_text()
    assert f"keras>=3.{low},<3.{high + 1}" in (HERE / "patches" / "common" / "wrapping.py").read_text()
