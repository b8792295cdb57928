"""The table of foreign names: none is missing from it, none is unused, and all are in what is installed."""

import ast
import importlib.util
from pathlib import Path

import pytest

from matex_tf.cli.main import main
from matex_tf.facts import check, fact
from matex_tf.facts.sources import Sources
from matex_tf.patches import table
from scripts.rooms import modules

PACKAGES = ("keras.", "tf_keras.", "tensorflow")
FOREIGN = ("keras.src", "tf_keras.src", "tensorflow.python")

#: Private names of Python, NumPy and others, by where they are; and words that only look like names.
OTHERS = {
    "os": "_exit",
    "sys": "_getframe",
    "importlib": "_initializing",
    "atexit": "_run_exitfuncs",
    "concurrent.futures": "_shutdown",
    "tempfile": "_RandomNameSequence _name_sequence _rng _rng_pid",
    "threading": "_DummyThread",
    "subprocess": "_child_created",
    "jax": "_src _jax",
    "zlib, codecs, io, queue": "_codecs _io _queue",
    "zsh": "_files",
    "NamedTuple": "_replace _fields",
    "logging": "_open",
    "numpy": "_format_impl _mmap _npyio_impl _seed_seq",
    "pandas": "_odswriter _openpyxl _xlsxwriter",
    "mlflow": "_MLFLOW_SERVER_ARTIFACT_ROOT",
    "wrapt": "_self_module _self_path",
    "netCDF": "_FillValue _NCProperties _Unsigned",
    "gfile of TensorFlow, in C++": "_FileIO__name",
    "parts of strings": (
        "_MCA_ _PREFIX _batch_end _c _class _config _input _of_ _output_shapes _read_watcher _user_specified_name"
    ),
}


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name.strip("_") != ""


def known():
    """Every part of a name in the table, and what is not of Keras or TensorFlow."""
    names = {part for one in check.FACTS for path in one.paths() for way in path for part in way.split(".")}
    return (
        names
        | {part for one in check.FACTS for part in one.module.replace("|", ".").split(".")}
        | {name for names in OTHERS.values() for name in names.split()}
    )


def defined(tree):
    """What a file defines itself."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            found.add(node.attr)
    return found


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def ours(tree):
    """The names by which a file knows modules of this package."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("matex_tf")
        for alias in node.names
    }


def private_names(tree, everywhere):
    """The private names that a file reads of something that is not its own, by attribute or in a string."""
    here, modules_of_ours = defined(tree), ours(tree)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in here:
            inherited = is_self(node.value) and node.attr in everywhere
            if not inherited and not (isinstance(node.value, ast.Name) and node.value.id in modules_of_ours):
                found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            parts = [part for part in node.value.split(".") if part.isidentifier() and is_private(part)]
            found |= {part for part in parts if part not in everywhere and not part.startswith("_matex")}
    return {name for name in found if not name.startswith("_matex")}


def aliases(tree):
    """The names by which a file knows private modules of Keras and TensorFlow; and what it imports of them."""
    modules_of, names = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(FOREIGN):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if any(full in one.module.split("|") for one in check.FACTS):
                    modules_of.setdefault(alias.asname or alias.name, []).append(full)
                else:
                    names.add((node.module, alias.name))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            call = node.value
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            text = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
            if ast.unparse(call.func).endswith("import_module") and str(text).startswith(FOREIGN):
                modules_of.setdefault(ast.unparse(target), []).append(text)
    return modules_of, names


def module_names(path, tree):
    """The names that a file reads or wraps of modules that it knows: (module, first part of the name)."""
    known_as, found = aliases(tree)
    found = {((module,), name) for module, name in found}
    patched = [place for place, patch in table.PATCHES if f"patches/{patch.replace('.', '/')}.py" == path]
    patched += [
        place for place, patch in (*table.of_features(), *table.recording()) if f"{patch.replace('.', '/')}.py" == path
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known_as:
            found.add((tuple(known_as[node.value.id]), node.attr))
        elif isinstance(node, ast.Call) and is_wrapped(node):
            owner, name = ast.unparse(node.args[0]), node.args[1].value
            if owner in known_as:
                found.add((tuple(known_as[owner]), name))
            elif owner == "module" and any(one.startswith(PACKAGES) for one in patched):
                found.add((tuple(patched), name))
    return found


def is_wrapped(call):
    """Whether a call wraps or asks for a name that stands there."""
    named = len(call.args) > 1 and isinstance(call.args[1], ast.Constant) and isinstance(call.args[1].value, str)
    return named and ast.unparse(call.func).rpartition(".")[2] in ("wrap", "method", "require")


def in_table(places, path):
    """Whether a row has one of some modules, and a name of it or the owner of one."""
    places = set(places)
    ways = [
        way
        for one in check.FACTS
        if places & set(one.module.split("|")) or any(place.startswith(f"{one.module}.") for place in places)
        for paths in one.paths()
        for way in paths
    ]
    return any(
        way.removeprefix("*.") == path or way.startswith(f"{path}.") or f".{way}".endswith(f".{path}") for way in ways
    )


@pytest.fixture(scope="module")
def trees():
    root = Path(__file__).resolve().parents[2]
    return {
        str(path.relative_to(root)): ast.parse(path.read_text())
        for name, path in modules().items()
        if name.partition(".")[0] != "facts"
    }


def test_every_private_name_is_in_the_table(trees):
    everywhere = set().union(*map(defined, trees.values()))
    names = known()
    missing = {
        f"{path}: {name}"
        for path, tree in trees.items()
        for name in private_names(tree, everywhere)
        if name not in names
    }
    assert not missing


def test_every_private_module_is_in_the_table(trees):
    """Also in strings, such as what is imported or patched by its name."""
    rows = [module for one in check.FACTS for module in one.module.split("|")]
    wrong = set()
    for path, tree in trees.items():
        docs = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, ast.Module)}
        for node in ast.walk(tree):
            name = node.module if isinstance(node, ast.ImportFrom) else getattr(node, "value", None)
            if (
                not isinstance(name, str)
                or name in docs
                or " " in name
                or not name.startswith(tuple(f"{one}." for one in FOREIGN))
            ):
                continue
            name = name.rstrip(".")
            if name not in rows and not any(row.startswith(f"{name}.") for row in rows):
                module, _, last = name.rpartition(".")
                if not in_table([module], last):
                    wrong.add(f"{path}: {name}")
    assert not wrong


def test_every_name_of_a_module_is_in_the_table(trees):
    """What is imported of a private module, read of it, or wrapped in one that is patched."""
    missing = {
        f"{path}: {' or '.join(places)} {name}"
        for path, tree in trees.items()
        for places, name in module_names(path, tree)
        if not in_table(places, name)
    }
    assert not missing


def test_the_walk_itself():
    """Names that are not in the table are seen."""
    tree = ast.parse(
        "from tensorflow.python.framework import ops as o\nimport importlib\n"
        "def f(self, x):\n    y = importlib.import_module('tensorflow.python.eager.context')\n"
        "    o.tried(x._hidden, getattr(x, '_named'), self._own)\n    y.asked()\n"
    )
    assert private_names(tree, {"_own"}) == {"_hidden", "_named"}
    assert module_names("", tree) == {
        (("tensorflow.python.framework.ops",), "tried"),
        (("tensorflow.python.eager.context",), "asked"),
    }
    layer = ["keras.src.layers.layer"]
    assert in_table(layer, "Layer.__call__") and not in_table(layer, "Layer.call")


def test_every_row_is_used():
    """By a file that has the name, or that knows its module."""
    unused = [
        f"{one.module} {name}"
        for one in check.FACTS
        for name in one.names.split()
        if not check.users(check.Missing(f"{one.module}.{name.split('|')[0]}", one))
    ]
    assert not unused


def test_what_is_installed():
    """Keras, tf_keras and TensorFlow have every name."""
    for package in ("keras", "tf_keras", "tensorflow"):
        found = importlib.util.find_spec(package)
        place = found.submodule_search_locations[0] if found else None
        if place:
            sources = Sources(place)
            facts = [one for one in check.FACTS if sources.packages.get(one.package) == package]
            assert [missing.name for missing in check.check(sources, facts)] == []


PACKAGE = {
    "keras/__init__.py": "",
    "keras/src/version.py": '__version__ = "3.16.1"',
    "keras/src/loops.py": "class Base:\n    def fit(self):\n        self._found = 1\nclass Other: pass\n",
    "keras/src/backend.py": "if True:\n    from keras.src.loops import Base as Behind\n"
    "class Loops(Behind):\n    limit = 3\n    def give(self, x):\n        x._mark = self\n",
}


@pytest.fixture
def place(tmp_path):
    for name, text in PACKAGE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "row, gone",
    [
        (("Loops|Older", "fit _found limit"), []),
        (("Older|Loops", "lost|fit lost"), ["keras.src.backend.Older.lost"]),
        (("*", "_mark _lost"), ["keras.src.backend.*._lost"]),
        (("", "Loops Behind Missing"), ["keras.src.backend.Missing"]),
        (("Nothing", "fit call"), ["keras.src.backend.Nothing"]),
        (("Loops", "soon", "", "3.17"), []),
        (("Loops", "once", "", "", "3.16"), []),
    ],
)
def test_what_is_found(place, row, gone):
    """By bases, imports and alternatives; of the versions that have it."""
    owner, names, *more = row
    facts = [fact.Fact("keras.src.backend", owner, names, *(more or [""]))]
    assert [missing.name for missing in check.check(Sources(place), facts)] == gone
    assert [
        one.name for one in check.check(Sources(place), [fact.Fact("keras.src.gone|keras.src.lost", "", "x", "")])
    ] == ["keras.src.gone|keras.src.lost"]


def test_doctor(place, capsys):
    """Says what is gone and who needs it, and by the exit code; nothing is imported."""
    assert main(["doctor", "--keras", str(place)]) == 1
    said = capsys.readouterr().out
    assert "keras.src.callbacks.history: gone\n" in said and "in: patches/fit/keras_callbacks.py\n" in said
    assert "keras 3.16.1: " in said
    assert main(["doctor", "--keras", str(place / "keras" / "src")]) == 2
