"""What the source of a script says of ranks: that it asks which one it is, or that it shares files among them."""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

#: Where launchers tell a process its rank; a script that has one of these names shares its work out by itself.
RANK_VARIABLES = frozenset(
    (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK", "PMI_RANK", "MPI_LOCALRANKID"),
        *("SLURM_PROCID", "SLURM_LOCALID"),
    )
)
#: What a launcher sets for a process.
_OF_LAUNCHERS = re.compile(r"(?:OMPI|PMIX?|MPI)_\w+|SLURM_(?:PROCID|LOCALID|NTASKS|NPROCS|GTIDS|TASK_PID|STEP_\w+)")
_RANK_NAMES = frozenset(("rank", "local_rank", "init", "world"))  # of matex_tf
#: Packages by which a script gives each of its ranks a part of its own, files too.
_SHARING = ("mpi4py", "horovod")
#: Functions that unpack, that start programs, and programs that unpack or reach other machines.
_UNPACKING = frozenset(("extractall", "unpack_archive"))
_STARTING = frozenset(("system", "popen", "run", "call", "check_call", "check_output", "getoutput", "Popen"))
_PROGRAMS = frozenset(
    (
        *("tar", "unzip", "7z", "gunzip", "unxz", "zstd"),
        *("wget", "curl", "aria2c", "aws", "gsutil", "gcloud", "az", "rclone", "kaggle", "huggingface-cli", "git"),
        *("ssh", "scp", "sftp", "rsync", "sbatch", "srun", "qsub", "bsub", "scancel", "mail", "mailx", "sendmail"),
        *("docker", "podman", "apptainer", "singularity", "tensorboard", "pip"),
    )
)
#: Functions whose text is read by people, and names no file.
_SAYING = frozenset(
    ("print", "debug", "info", "warning", "warn", "error", "critical", "exception", "log", "Exception", "ValueError")
    + ("RuntimeError", "SystemExit", "exit")
)


def file_of_module(name: str) -> str:
    """The source that `-m NAME` runs, if it lies below the working directory; else ""."""
    beside = os.path.abspath(os.path.join(*name.split(".")))
    return next((path for path in (f"{beside}.py", os.path.join(beside, "__main__.py")) if os.path.isfile(path)), "")


def for_rank(path: str, text: str = "") -> bool:
    """Whether a source imports mpi4py, asks matex_tf for its rank, or looks into a launcher's variables.

    Args:
        path: of the source; not read where its `text` is given.
    """
    tree = _parsed(path, text)
    return any(module.partition(".")[0] == "mpi4py" for module in _imported(tree)) or _Ranks(tree).asks


def shares_files(path: str, text: str = "", perhaps: bool = True) -> str:
    """Why a script, with its modules beside it, may share files among its ranks, such as "it imports mpi4py"; or "".

    Args:
        path: of the script; empty for none.
        text: its source, where that is in no file.
        perhaps: whether to look at what one does that asks for its rank: to print or to choose is no reason.
    """
    trees = _trees(path, text)
    found = next((f"the script imports {package}" for tree in trees if (package := _shared_by(tree))), "")
    return found or next((why for tree in trees if perhaps and (why := _shares(tree))), "")


def _shares(tree: ast.AST) -> str:
    ranks = _Ranks(tree)
    if ranks.meets:
        return "the script lets its ranks meet by itself (matex_tf.init)"
    if not ranks.asks:
        return ""
    if line := ranks.named_at():
        return f"the script puts its rank into a text at line {line}, which may be the name of a file"
    if any(name.split(".")[-1] == "sleep" for name in _called(tree)):
        return "the script asks for its rank and sleeps, so it may wait for a file of another rank"
    return ""


def once_is_better(path: str, text: str = "") -> str:
    """Why a script had better do once what changes files, and not in a layer of each rank; or "".

    What it unpacks would take room on the disk for each rank, and a program that reaches other machines would do so.

    Args:
        path: of the script; empty for none.
        text: its source, where that is in no file.
    """
    for tree in _trees(path, text):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            last = node.func.attr if isinstance(node.func, ast.Attribute) else _dotted(node.func)
            if last in _UNPACKING:
                return f"the script unpacks an archive ({last} at line {node.lineno})"
            if last in _STARTING and (program := _program(node)) in _PROGRAMS:
                return f"the script starts {program} at line {node.lineno}"
    return ""


def _program(call: ast.Call) -> str:
    """The program that a call starts, as far as its source shows it."""
    first = call.args[0] if call.args else None
    if isinstance(first, (ast.List, ast.Tuple)) and first.elts:
        first = first.elts[0]
    if isinstance(first, ast.JoinedStr) and first.values:
        first = first.values[0]
    words = first.value.split() if isinstance(first, ast.Constant) and isinstance(first.value, str) else []
    return os.path.basename(words[0]) if words else ""


class _Ranks:
    """What a source does with the number of its rank.

    Attributes:
        asks: whether it asks for it.
        meets: whether it has the ranks as a whole, on which it may let them meet.
    """

    def __init__(self, tree: ast.AST):
        self._tree = tree
        ours = {
            alias.asname or "matex_tf"
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name == "matex_tf"
        }
        self._names = {f"{module}.{name}": name for module in ours for name in _RANK_NAMES}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "matex_tf":
                named = {alias.asname or alias.name: alias.name for alias in node.names}
                self._names |= {name: what for name, what in named.items() if what in _RANK_NAMES}
        used = {self._names[name] for name in map(_dotted, ast.walk(tree)) if name in self._names}
        self.meets = bool(used & {"init", "world"})
        self.asks = bool(used) or any(text in RANK_VARIABLES for text in _texts(tree))
        self._holding: set[str] = set()  # names of variables that have a rank
        before = -1
        while len(self._holding) != before:
            before = len(self._holding)
            for node in ast.walk(tree):
                self._assigned(node)

    def _assigned(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value and self._is_in(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            self._holding.update(name for target in targets for name in map(_dotted, ast.walk(target)) if name)

    def _is_in(self, node: ast.AST) -> bool:
        return any(
            (name := _dotted(part)) in self._names
            or (name and name in self._holding)
            or (isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value in RANK_VARIABLES)
            for part in ast.walk(node)
        )

    def named_at(self) -> int:
        """The line of the first text with a rank that is not merely said; 0 for none."""
        said = {
            id(part)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Call) and _dotted(node.func).split(".")[-1] in _SAYING
            for part in ast.walk(node)
        }
        texts = [node for node in ast.walk(self._tree) if id(node) not in said and _is_text(node)]
        return min((node.lineno for node in texts if self._is_in(node)), default=0)


def _is_text(node: ast.AST) -> TypeGuard[ast.expr]:
    """Whether it makes a text of values."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
        return any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in (node.left, node.right))
    if isinstance(node, ast.Call):
        return _dotted(node.func) == "str" or (isinstance(node.func, ast.Attribute) and node.func.attr == "format")
    return isinstance(node, ast.JoinedStr)


def _dotted(node: ast.AST) -> str:
    """The name that an expression is, such as "matex_tf.rank"; empty for what is none."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _called(tree: ast.AST) -> Iterator[str]:
    return (_dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))


def takes_part(path: str, text: str = "") -> bool:
    """Whether a script, or a module beside it, looks into a launcher's variables, or imports what does.

    Args:
        path: of the script; empty for none.
        text: its source, where that is in no file.
    """
    return any(any(map(_OF_LAUNCHERS.fullmatch, _texts(tree))) or _shared_by(tree) for tree in _trees(path, text))


@functools.lru_cache(maxsize=1)  # the start of a rank asks several things of one script
def _trees(path: str, text: str) -> list[ast.Module]:
    return [_parsed("", text)] if text else [tree for _, tree in _sources(path)] if path else []


def _shared_by(tree: ast.AST) -> str:
    packages = (module.partition(".")[0] for module in _imported(tree))
    return next((package for package in packages if package in _SHARING), "")


def _texts(tree: ast.AST) -> list[str]:
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _sources(path: str) -> Iterator[tuple[str, ast.Module]]:
    """A script, and the modules in its folder that it imports, and those that they import."""
    folder, left, seen = os.path.dirname(os.path.abspath(path)), [os.path.abspath(path)], set()
    while left:
        each = left.pop()
        if each in seen or not os.path.isfile(each):
            continue
        seen.add(each)
        tree = _parsed(each)
        yield each, tree
        for module in _imported(tree):
            beside = os.path.join(folder, *module.split("."))
            left += [f"{beside}.py", os.path.join(beside, "__init__.py")]


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def _parsed(path: str, text: str = "") -> ast.Module:
    """The tree of a source; an empty one where there is none, or none that Python takes."""
    try:
        return ast.parse(text or Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])  # a binary module, or a folder that is run; Python says what is wrong with the rest
