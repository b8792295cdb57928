"""Features: found by entry points, unknown to the core, and gone without a trace."""

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from matex_tf.cli.main import COMMANDS, main
from matex_tf.errors import MatexError
from matex_tf.features import found, registry
from matex_tf.settings import declaration
from matex_tf.settings.run_settings import declarations
from matex_tf.settings.strategy_registry import STRATEGIES
from scripts.rooms import imported, modules

ROOT = Path(__file__).parents[2]
ECHO = ROOT / "tests" / "support" / "echo_feature"
#: Settings whose names are words of Keras too, and of scripts.
WORDS = {"metrics"}
OURS = sorted(path.parent.name for path in (ROOT / "matex_tf" / "features").glob("*/__init__.py"))


def core():
    """The modules that are no feature's, and their files."""
    of_features = tuple(f"features.{name}" for name in OURS)
    return {name: path for name, path in modules().items() if not name.startswith(of_features)}


def own_settings(name):
    """The names of the settings that a feature declares."""
    topics = [name, *(f"strategy {strategy}" for strategy in found()[name].strategies)]
    return {
        one.name for topic in topics if topic in declarations() for one in declaration.Option.of(declarations()[topic])
    }


@functools.cache
def words(path):
    """The texts of a file and the settings that it reads, with their lines."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        word = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Attribute) and re.search("settings|given|flags", ast.unparse(node.value)):
            word = node.attr  # not `found.groups()`
        if isinstance(word, str):
            found.append((node.lineno, word))
    return found


def test_all_are_found():
    """If this fails, scripts/setup has not run since a feature came."""
    assert sorted(set(found()) & set(OURS)) == OURS


@pytest.mark.parametrize("feature", OURS)
def test_the_core_knows_none(feature):
    """No module of the core imports it, for types neither, or names a module or a setting of it."""
    settings = own_settings(feature) - set(COMMANDS)
    names = {*settings - WORDS, *map(declaration.flag_name, settings), *map(declaration.variable_name, settings)}
    wrong = []
    for name, path in core().items():
        wrong += [f"{name} imports {one}" for one in imported(path, for_types=True) if f"features.{feature}" in one]
        for line, word in words(path):
            if word in names or f"features.{feature}" in word:
                wrong.append(f"{path}:{line} names {word}")
    assert not wrong


@pytest.mark.parametrize("feature", OURS)
def test_no_feature_imports_another(feature):
    """Each can be left out alone."""
    others = tuple(f"features.{name}" for name in OURS if name != feature)
    for name, path in modules().items():
        if name.startswith(f"features.{feature}"):
            assert not [one for one in imported(path, for_types=True) if one.startswith(others)], name


def test_what_is_known_of_those_that_are_absent():
    """The file is what the command prints, if all are there."""
    printed = subprocess.run([sys.executable, "-m", "matex_tf.features"], capture_output=True, text=True).stdout
    known = (ROOT / "matex_tf" / "features" / "known.txt").read_text().splitlines()
    assert [line for line in known if line.split()[1] in OURS] == printed.splitlines()


def test_absent(monkeypatch, capsys):
    """A command and settings that are not there: an error as for any other, which says what to install."""
    monkeypatch.setattr(registry, "found", dict)
    monkeypatch.setattr(STRATEGIES, "_known", STRATEGIES._core)
    for line in (ROOT / "matex_tf" / "features" / "known.txt").read_text().splitlines():
        package, feature, *words = line.split()
        said = f" (of the feature {feature}, which is not installed: pip install '{package}')"
        for word in words:
            assert main(["run", word, "1", "train.py"] if word.startswith("-") else [word, "x"]) == 2
            assert said in capsys.readouterr().err
            if word.startswith("--"):
                assert registry.installed_by(declaration.variable_name(word[2:].replace("-", "_"))) == said
    assert main(["--help"]) == 0
    assert not [name for name in OURS if f"\n  {name} " in capsys.readouterr().out]


def declare(folder, package, *lines):
    """A package that declares entry points, in a directory of its own."""
    (folder / f"{package}-1.0.dist-info").mkdir(parents=True)
    (folder / f"{package}-1.0.dist-info" / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return str(folder)


def test_entry_points(tmp_path):
    """Those of our group alone; a directory or a file that is not there is none."""
    group = [
        "[console_scripts]",
        "a = a:main",
        "[matex_tf.features]",
        "a = a.b:register",
        "b=b:register",
        "",
        "[x]",
        "c = c:d",
    ]
    places = [
        declare(tmp_path / "one", "first", *group),
        str(tmp_path / "none"),
        declare(tmp_path / "two", "other", "[x]"),
    ]
    assert list(registry.entry_points(places)) == [
        ("a", "a.b:register", "first-1.0"),
        ("b", "b:register", "first-1.0"),
    ]


@pytest.mark.parametrize(
    ("others", "code", "said"),
    [
        ("echo = another:register", "", r"two packages have a feature echo: first-1.0 \(one:register\) and second-1.0"),
        (
            "more = two:register",
            "raise ValueError('no')",
            r"feature more of the package second-1.0 cannot be used .* no",
        ),
        ("more = two:register", "import nowhere", r"feature more of the package second-1.0 cannot be used .*nowhere"),
        ("more = two:other", "", "feature more of the package second-1.0 cannot be used .AttributeError"),
        ("more = two:register", "", "the features echo and more both add echo to the commands"),
        ("more = gone.away:register", "", None),  # its folder was left out
    ],
)
def test_what_is_refused(tmp_path, monkeypatch, others, code, said):
    """What cannot be used is an error that names the package, and not a feature that is missing in silence."""
    register = (
        "from matex_tf.features import Command, Feature\n"
        "def register(): return Feature({'echo': Command('print words', 'nowhere')})\n"
    )
    (tmp_path / "one.py").write_text(register)
    (tmp_path / "two.py").write_text(f"{code}\n{register}")
    places = [declare(tmp_path / "1", "first", "[matex_tf.features]", "echo = one:register")]
    places += [declare(tmp_path / "2", "second", "[matex_tf.features]", others)]
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("one", "two"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    if said is None:
        assert list(registry.features_in(places)) == ["echo"]
    else:
        with pytest.raises(MatexError, match=said):
            registry.features_in(places)


def test_of_somebody_else(tmp_path):
    """A package that adds a command and a setting: installed, used, and removed again."""
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    python = str(env / "bin" / "python")
    site = next((env / "lib").glob("python*/site-packages"))
    (site / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    shutil.copytree(ECHO, tmp_path / "echo")  # pip builds in it

    def pip(*words):
        words = ["-m", "pip", "--disable-pip-version-check", "--python", python, *words]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # which has mpirun

    def matex(*words):
        code = "import sys; from matex_tf.cli.main import main; sys.exit(main(sys.argv[1:]))"
        done = subprocess.run([python, "-c", code, *words], cwd=tmp_path, env=environ, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    absent = matex("echo", "hello")
    assert absent[0] == 2 and "there is no command echo" in absent[1]
    pip("install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", str(tmp_path / "echo"))
    assert "  echo        print words: matex-tf echo WORDS\n" in matex("--help")[1]
    assert matex("echo", "hello", "--echo-times", "2") == (0, "hello hello\n")
    assert "echo (the README of matex-echo):\n  --echo-times N " in matex("run", "--help")[1]
    assert "--echo-times is 0; it must be 1 or more" in matex("echo", "hello", "--echo-times=0")[1]
    assert matex("run", "--faults", "echo", "-n", "2", "-c", "pass")[1].endswith("2 ranks of -c\n")
    refused = matex("run", "--echo-times", "2", "--codec", "int8", "-c", "pass")
    assert refused == (2, "matex-tf: error: --echo-times and --codec do not go together: leave out one.\n")
    pip("uninstall", "--quiet", "--yes", "matex-echo")
    assert matex("echo", "hello") == absent
    assert "matex-tf run has no flag --echo-times" in matex("run", "--echo-times", "2", "-c", "pass")[1]
