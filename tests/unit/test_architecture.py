"""The rooms of the house: who may import whom, how many modules there are in one, and what its `__init__` says."""

from __future__ import annotations

import ast
import functools
import re

import pytest
from there import of_those

from scripts.rooms import imported, modules

MOST = 13  # modules of a room, beside its `__init__`

#: Every room, and the rooms that its modules may import, lazily or not.
ROOMS: dict[str, str] = {
    # The public names, and `python -m matex_tf`.
    "matex_tf": "core job launch readers patches.loops features",
    "settings": "features",
    "state": "",
    "features": "",
    "storage": "",
    "layer": "storage",
    "facts": "features",
    "core": "storage core.transport",
    "core.transport": "core",
    "exchange": "core core.transport exchange.node exchange.network",
    "exchange.node": "core exchange.network",
    "exchange.network": "core core.transport",
    "strategies": "core exchange exchange.network",
    "faults": "core",
    "watching": "core storage",
    "planning": "",
    "launch": "core layer",
    "readers": "core readers.tables readers.formats readers.safety readers.places",
    "readers.places": "",
    "readers.safety": "core readers.places",
    "readers.tables": "core readers.safety readers.places",
    "readers.formats": "core features readers.tables readers.safety readers.places",
    "readers.formats.csv": "core readers.tables readers.safety readers.places",
    "readers.formats.hdf5": "core readers.tables readers.safety readers.places",
    "readers.formats.netcdf": "core readers.tables readers.safety readers.places",
    "patches": (
        "core features launch patches.common patches.files patches.imports patches.loops patches.steps"
        " patches.turns"
    ),
    "patches.common": "core patches",
    "patches.random": "core exchange patches.common patches.across_rows patches.partition",
    "patches.across_rows": "core exchange patches.common",
    "patches.checking": "core exchange strategies patches.common patches.across_rows",
    "patches.keras": "core exchange strategies patches.common patches.across_rows patches.shards patches.steps",
    "patches.sources": "core strategies patches.common",
    "patches.data": (
        "core exchange exchange.network strategies watching readers patches.common patches.steps"
        " patches.sources"
    ),
    "patches.turns": "core launch exchange.node exchange.network patches.common patches.data patches.sources",
    "patches.division": (
        "core patches.common patches.data patches.sources patches.turns"
    ),
    "patches.recovery": (
        "core storage faults exchange patches.common patches.data patches.keras patches.shards patches.steps"
    ),
    "patches.partition": "core exchange patches.partition.shapes patches.partition.rules patches.partition.patterns",
    "patches.partition.shapes": "patches.partition patches.partition.patterns",
    "patches.partition.lengths": "patches.partition patches.partition.shapes",
    "patches.shards": "core patches.common patches.partition patches.partition.rules patches.partition.shapes",
    "patches.partition.patterns": "patches.partition patches.partition.shapes patches.partition.rules",
    "patches.partition.rules": "patches.partition patches.partition.shapes",
    "patches.fit.step": (
        "core exchange strategies watching patches.common patches.across_rows patches.checking patches.data"
        " patches.keras patches.recovery patches.random patches.steps patches.partition patches.partition.lengths"
        " patches.partition.shapes patches.shards patches.sources"
    ),
    "patches.fit.epochs": (
        "core patches.common patches.data patches.division patches.fit.step patches.recovery patches.sources"
        " patches.turns"
    ),
    "patches.fit": (
        "core exchange strategies watching readers patches.common patches.across_rows patches.checking patches.data"
        " patches.division patches.sources patches.turns patches.keras patches.recovery patches.random patches.steps"
        " patches.fit.step patches.partition patches.shards"
        " patches.files"  # whether the script asks for its rank
        " patches.steps"
    ),
    "patches.steps": "strategies watching patches patches.common",
    "patches.saving": "core storage patches.common patches.keras patches.fit patches.shards",
    "patches.files": "core layer patches patches.common",
    "patches.files.handles": "core patches.common patches.files",
    "patches.imports": "core features readers patches patches.common patches.files",
    "patches.loops": (
        "core exchange strategies watching patches.common patches.across_rows patches.checking patches.data"
        " patches.division patches.keras patches.saving patches.sources patches.turns patches.loops.compiled"
    ),
    "patches.loops.compiled": (
        "core exchange strategies watching patches.common patches.loops patches.partition patches.partition.lengths"
        " patches.partition.rules patches.partition.shapes patches.checking patches.recovery patches.shards"
    ),
    "job": (
        "core layer launch faults watching patches patches.common"
        " patches.files patches.imports features"
    ),
    "cli.checks": "facts launch layer",
    "cli": "cli.checks core watching launch job features",
}  # fmt: skip
FOR_ALL = {"errors", "settings", "state"}  # modules


def room_of(name: str) -> str:
    """The room of a module."""
    return (name if modules()[name].name == "__init__.py" else name.rpartition(".")[0]) or "matex_tf"


#: The rooms of features: each may import any room of the core, and tests/unit/test_features.py says who may import it.
OF_FEATURES = sorted({room_of(name) for name in modules() if name.startswith("features.")} - {"features"})


def test_every_room_is_in_the_table():
    assert {room_of(name) for name in modules()} == {*ROOMS, *OF_FEATURES}


@pytest.mark.parametrize("room", ROOMS)
def test_who_imports_whom(room):
    """A room imports itself, and what the table allows it."""
    may = {room, *ROOMS[room].split()}
    wrong = [
        f"{name} imports {other}"
        for name, path in modules().items()
        if room_of(name) == room
        for other in sorted(imported(path))
        if other.partition(".")[0] not in FOR_ALL and room_of(other) not in may
    ]
    assert not wrong


def test_rooms_have_no_circle():
    """The table can be read from the ground up; a package and its parts are one storey."""
    left = {
        room: {other for other in may.split() if other.split(".")[0] != room.split(".")[0]}
        for room, may in ROOMS.items()
    }
    left["matex_tf"] = set()  # lazily, for the public names
    left["patches"] = set()  # the table of patches, which are imported by their names
    while left:
        ground = {room for room, may in left.items() if not may & set(left)}
        assert ground, left
        left = {room: may for room, may in left.items() if room not in ground}


def test_files_have_no_circle():
    """No more than three files import one another, at the top, in functions or for annotations: the rest can be read
    from the ground up."""
    known = modules()
    asks = {name: imported(path, for_types=True).intersection(known) for name, path in known.items()}
    reached = {}
    for name in known:
        seen, new = set(), asks[name]
        while new:
            seen |= new
            new = set().union(*(asks[other] for other in new)) - seen
        reached[name] = seen
    circles = {frozenset(other for other in seen if name in reached[other]) for name, seen in reached.items()}
    assert not [sorted(circle) for circle in circles if len(circle) > 3]


@pytest.mark.parametrize("room", [room for room in (*ROOMS, *OF_FEATURES) if room != "matex_tf"])
def test_what_a_room_says(room):
    """What lives there, what it may import and where to start; and no more modules than a reader can hold."""
    folder = modules()[room].parent
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    start = re.search(r"Start reading in (\S+\.py)\b", said)
    assert re.search(r"[Ii]t may import |May import ", said) and start, said
    assert (folder / start[1]).exists(), start[1]
    assert len(list(folder.glob("*.py"))) <= MOST + 1


def test_one_module_knows_mpi4py():
    """Only the transport on MPI imports it, and only the registry of transports names that one, in a string. Nobody
    above has a communicator without a type. (`hvd.init(comm)` takes whatever a script gives.)"""
    assert {name for name, path in modules().items() if "mpi4py" in packages(path)} == {"core.transport.mpi"}
    assert not [name for name, path in modules().items() if "core.transport.mpi" in imported(path)]
    untyped = re.compile(r"\bcomm: (Any|object)\b")
    found = {name for name, path in modules().items() if untyped.search(path.read_text())}
    assert found == of_those({"features.horovod.names.core.basics"})


def test_one_checksum():
    """What ranks compare is made into a number in one place; others check or unpack files."""
    found = {name for name, path in modules().items() if packages(path) & {"zlib", "hashlib", "binascii"}}
    files = {name for name in found if name.startswith("readers.")}
    files |= of_those({"features.restart.files"})
    assert found - files == {"core.mismatch", "core.sign"}  # the sign's is for strangers, not for ranks


#: Lines of a function, without its docstring; and what may have more: a list of options.
LONGEST, LISTS = 70, {"features.label.command parser"}


def test_functions_can_be_held():
    """No function is longer than a reader can hold."""
    found = set()
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = node.body[ast.get_docstring(node) is not None :] or node.body
                if node.end_lineno - body[0].lineno + 1 > LONGEST:
                    found.add(f"{name} {node.name}")
    assert found == of_those(LISTS)


@functools.cache
def packages(path):
    """The packages that a file imports, lazily or not."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def test_a_wrong_import_is_seen(tmp_path):
    """The test itself: an import inside of a function counts, one for the type checker does not."""
    file = tmp_path / "module.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from matex_tf.job import run\n"
        "def f():\n    from matex_tf.exchange import tf_op\n    import matex_tf.core.world\n"
    )
    assert imported(file) == {"exchange.tf_op", "core.world"}


def defined():
    """Every module, class and function, with the name of its module."""
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield name, node


def test_docstrings_say_what_the_thing_is():
    """None begins with "The same" or "Those": a reader who came from elsewhere has not read what comes before."""
    empty = re.compile(r"(The same|Those)\b")
    assert not [(name, node.name) for name, node in defined() if empty.match(ast.get_docstring(node) or "")]


#: Classes that scripts get, and modules whose functions they call.
PUBLIC = {"readers.dataset": "DataSet", "readers.shard": "Shard", "strategies.base": "Strategy"}
FUNCTIONS = ("patches.across_rows.all_rows", "patches.loops.gradient_updates")


def test_public_functions_say_what_they_take():
    """Args for two arguments or more, and Raises for what is raised there, of all that scripts call."""
    called = {"all_rows", "average"}
    wrong = []
    for name, node in defined():
        inside = node.body if isinstance(node, ast.ClassDef) and PUBLIC.get(name) == node.name else []
        inside += [node] if name in FUNCTIONS and getattr(node, "name", "") in called else []
        for one in inside:
            if not isinstance(one, ast.FunctionDef) or one.name.startswith("_"):
                continue
            given = [arg.arg for arg in (*one.args.args, *one.args.kwonlyargs) if arg.arg not in ("self", "cls")]
            said = ast.get_docstring(one) or ""
            raised = [ast.unparse(part.exc) for part in ast.walk(one) if isinstance(part, ast.Raise) and part.exc]
            raises = bool(set(raised) - {"NotImplementedError"})
            wrong += [f"{name} {one.name}: Args"] * (len(given) > 1 and "Args:" not in said)
            wrong += [f"{name} {one.name}: Raises"] * (raises and "Raises:" not in said)
    assert not wrong


#: Rooms in which every public function says what it takes, and those of a `Format`, which says so for all formats.
BY_FORMAT = {"open", "guess_can_open"}
SAID = (
    *("readers.", "core.", "exchange.", "strategies."),
    *("cli.", "errors", "facts.", "faults.", "job.", "launch.", "layer.", "planning.", "pytest_plugin", "settings."),
    *("features.", "patches."),
    *("state.", "storage.", "watching."),
)


def unsaid(name, node):
    """The public functions of a module or a class that do not say what two or more arguments are."""
    if not isinstance(node, ast.Module | ast.ClassDef) or getattr(node, "name", "").startswith("_"):
        return
    for one in node.body:
        if not isinstance(one, ast.FunctionDef) or one.name.startswith("_") or one.name in BY_FORMAT:
            continue
        given = {arg.arg for arg in (*one.args.args, *one.args.kwonlyargs)} - {"self", "cls"}
        said = ast.get_docstring(one)  # a method without one has that of its base class
        named = set(re.findall(r"`(\w+)", said or ""))
        if said and len(given) > 1 and not ("Args:" in said or "see `" in said or given <= named):
            yield f"{name} {one.name}"


def test_rooms_that_say_what_functions_take():
    """Args for two arguments or more, unless the docstring names them all, or where they are said."""
    rooms = [(name, node) for name, node in defined() if name.startswith(SAID) and "._" not in name]
    assert len(rooms) > 100
    assert not [one for name, node in rooms for one in unsaid(name, node)]


def test_a_function_that_does_not_say_is_seen():
    """The test itself."""
    told = (
        'def f(a, b):\n    """Does it.\n\n    Args:\n        a: one.\n    """\ndef g(a, b):\n    """`a` and `b`."""\n'
    )
    assert not list(unsaid("m", ast.parse(told)))
    assert list(unsaid("m", ast.parse('def f(a, b):\n    """Does `a`."""\n'))) == ["m f"]


def test_the_loop_of_fit_knows_few():
    """What a feature does in `fit` is a part of a step, or a hook of its own: the loop does not import it."""
    assert len(imported(modules()["patches.fit.trainer"])) <= 12
