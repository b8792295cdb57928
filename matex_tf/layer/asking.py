"""What the source of a script says of ranks: that it asks which one it is, or that it shares files among them."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

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


def for_rank(path: str, text: str = "") -> bool:
    """Whether a source imports mpi4py, asks matex_tf for its rank, or looks into a launcher's variables.

    Args:
        path: of the source; not read where its `text` is given.
    """
    tree = _parsed(path, text)
    ours: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name.partition(".")[0] for alias in node.names]
            ours.update(alias.asname or "matex_tf" for alias in node.names if alias.name == "matex_tf")
        elif isinstance(node, ast.ImportFrom):
            modules = [(node.module or "").partition(".")[0]]
            if modules == ["matex_tf"] and any(alias.name in _RANK_NAMES for alias in node.names):
                return True
        else:
            continue
        if "mpi4py" in modules:
            return True
    return any(text in RANK_VARIABLES for text in _texts(tree)) or any(
        isinstance(node, ast.Attribute)
        and node.attr in _RANK_NAMES
        and isinstance(node.value, ast.Name)
        and node.value.id in ours
        for node in ast.walk(tree)
    )


def shares_files(path: str) -> str:
    """Why a script, with its modules beside it, may share files among its ranks, such as "it imports mpi4py"; or ""."""
    found = next((package for _, tree in _sources(path) if (package := _shared_by(tree))), "")
    return f"the script imports {found}" if found else ""


def takes_part(path: str, text: str = "") -> bool:
    """Whether a script, or a module beside it, looks into a launcher's variables, or imports what does.

    Args:
        path: of the script; empty for none.
        text: its source, where that is in no file.
    """
    trees = [_parsed("", text)] if text else [tree for _, tree in _sources(path)] if path else []
    return any(any(map(_OF_LAUNCHERS.fullmatch, _texts(tree))) or _shared_by(tree) for tree in trees)


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
