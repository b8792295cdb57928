"""Command lines of the docs, checked against what is there: commands, flags, settings and their values, scripts, files.

`is_command` says whether a line is one that is checked, `wrong_command` what is wrong with it.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

#: Names that stand for a file of the reader's own.
THE_READERS_OWN = re.compile(
    r"(train|script|my_\w+|first|SCRIPT|X|test_user)(\.py|\.ipynb)?$|job\.sh$|package\.module$"
)

LAUNCHERS = ("mpirun", "mpiexec", "srun")
FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


def words_of(line: str) -> list[str]:
    """The words of a command line, without what follows a pipe, `&&` or `;`, and without variables before it."""
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return []
    for number, word in enumerate(words):
        if set(word) <= set("|&;<>"):
            words = words[:number]
            break
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    return words


def is_command(line: str) -> bool:
    """Whether a line is one that is checked."""
    words = words_of(line)
    if len(words) < 2 and not (words and words[0].startswith("scripts/")):
        return False
    if words[0] in LAUNCHERS:
        return any(word in ("python", "matex-tf") or word.endswith("/python") for word in words)
    return words[0] in ("matex-tf", "python", "pytest", "pip", "horovodrun") or bool(
        re.match(r"(scripts|\.venv/bin)/[\w-]+$", words[0])
    )


def wrong_command(line: str) -> str:
    """What is wrong with a command line; "" where nothing is."""
    words = words_of(line)
    if words[0] in LAUNCHERS:
        while not re.search(r"(^|/)(python|matex-tf)$", words[0]):
            words.pop(0)
    first, rest = words[0].rpartition("/")[2] if not words[0].startswith("scripts/") else words[0], words[1:]
    if first == "matex-tf":
        return wrong_matex(rest)
    if first == "horovodrun":
        return wrong_flags(rest, known_flags("horovodrun"), "horovodrun", stop="python")
    if first == "pip":
        return wrong_extras(rest)
    if first == "python":
        return wrong_python(rest)
    if first == "pytest":
        return wrong_pytest(rest)
    if first.startswith("scripts/"):
        return wrong_script(first, rest)
    return "" if (ROOT / ".venv" / "bin" / first).exists() else f"there is no {words[0]}"


@cache
def known_flags(command: str) -> frozenset[str]:
    """The flags that a command of matex-tf takes."""
    parser = importlib.import_module(commands()[command].module).parser()
    return frozenset({*parser.known, "--help"})


@cache
def commands() -> Mapping[str, Any]:
    """The commands of matex-tf."""
    from matex_tf.cli import main

    return main.commands()


def wrong_matex(words: Sequence[str]) -> str:
    if words[0] in ("--version", "--help"):
        return ""
    if words[0] == "help" and words[1].startswith("docs/"):
        return "" if (ROOT / words[1]).is_file() else f"there is no page {words[1]}"
    if words[0] == "help":
        words = [*words[1:], "--help"]
    if words[0] not in commands():
        return f"matex-tf has no command {words[0]}"
    if words[0] == "horovodrun":
        return wrong_flags(words[1:], known_flags("horovodrun"), "matex-tf horovodrun", stop="python")
    if words[0] in ("run", "plan", "sbatch") or (words[0] == "kube" and words[1:] and words[1].startswith("-")):
        return wrong_run(words[1:], words[0])
    if words[0] == "join":  # the job comes first, and the script may be that of the job
        return wrong_run([*words[2:], "train.py"], words[0])
    return wrong_flags(words[1:], known_flags(words[0]), f"matex-tf {words[0]}")


def wrong_run(words: Sequence[str], command: str) -> str:
    """Flags and settings before the script, with their values; and the script."""
    from matex_tf.errors import SettingError
    from matex_tf.settings import Settings, options

    by_flag = {one.flag: one for one in options()}
    rest, given = list(words), dict[str, str]()
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        flag, equals, value = rest.pop(0).partition("=")
        if flag not in by_flag and flag not in known_flags(command):
            return f"matex-tf {command} has no flag {flag}"
        option = by_flag.get(flag)
        alone = option is not None and option.stands_alone and rest and not option.takes(rest[0])
        if not equals and flag not in ("--dry-run", "--help", "--submit") and rest and not alone:
            value = rest.pop(0)
        if option is not None and value and not value.isupper():  # FILE or N stands for a value
            given[option.name] = value
    try:
        Settings.read(given, {})
    except SettingError as error:
        return str(error)
    return wrong_program(rest)


def wrong_program(words: Sequence[str]) -> str:
    """A script or `-m MODULE`, with the arguments that it has."""
    if not words:
        return ""
    if words[0] in ("-c", "-"):
        return ""
    if words[0] == "-m":
        return wrong_module(words[1], words[2:])
    if THE_READERS_OWN.search(words[0]):
        return ""
    path = ROOT / words[0]
    if not path.is_file():
        return f"there is no {words[0]}"
    return wrong_flags(words[1:], frozenset(FLAG.findall(path.read_text())), words[0], stop="--")


def wrong_module(name: str, words: Sequence[str]) -> str:
    if name == "pytest":
        return wrong_pytest(words)
    if name == "matex_tf":
        return wrong_run(words, "run")
    if name in ("pip", "venv") or THE_READERS_OWN.search(name):
        return ""
    outside = name.startswith(("matex_tf.patches.", "matex_tf.readers."))  # these lie beside matex_tf/
    path = ROOT / (name.removeprefix("matex_tf.") if outside else name).replace(".", "/")
    return "" if path.with_suffix(".py").is_file() or path.is_dir() else f"there is no module {name}"


def wrong_python(words: Sequence[str]) -> str:
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words = words[1:]
    if not words or words[0] == "-c":
        return ""
    problem = wrong_program(words)
    if not problem and "--" in words:
        inner = shlex.join(words[words.index("--") + 1 :])
        return wrong_command(inner) if is_command(inner) else ""
    return problem


@cache
def pytest_flags() -> frozenset[str]:
    """The flags of pytest, those of its plugins and of conftest.py among them."""
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "--help", "-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return frozenset(FLAG.findall(told.stdout))


def wrong_pytest(words: Sequence[str]) -> str:
    for word in words:
        if word.startswith("-") and word.partition("=")[0] not in pytest_flags():
            return f"pytest has no flag {word}"
        if word.startswith("tests/") and len(word) > len("tests/"):
            name, _, test = word.partition("::")
            files = [ROOT / name] if (ROOT / name).exists() else list(ROOT.glob(name))
            if not files:
                return f"there is no {name}"
            if test and f"def {test.partition('[')[0]}(" not in files[0].read_text():
                return f"{name} has no {test}"
    return ""


def wrong_script(name: str, words: Sequence[str]) -> str:
    """A file of scripts/ with its flags; what it hands on is checked as that."""
    path = ROOT / name
    if not path.is_file():
        return f"there is no {name}"
    if name == "scripts/bench":
        return wrong_bench(words)
    flags = frozenset(FLAG.findall(path.read_text()))
    if name == "scripts/test":
        return wrong_pytest([word for word in words if word not in flags])
    for module in re.findall(r"tests/\w+\.py|tests/\w+/\w+\.py", path.read_text()):
        flags |= frozenset(FLAG.findall((ROOT / module).read_text()))
    return wrong_flags(words, flags, name)


def wrong_bench(words: Sequence[str]) -> str:
    if not words or words[0].startswith("-") or words[0].isupper():
        return ""
    part = ROOT / "benchmarks" / words[0]
    files = list(part.glob("*.py")) if part.is_dir() else [part.with_suffix(".py")]
    if not files[0].is_file():
        return f"scripts/bench has no part {words[0]}"
    text = "".join(file.read_text() for file in files)
    lines = re.findall(r"^from benchmarks(?:\.| import )(.+)", text, re.MULTILINE)
    for imported in {name for line in lines for name in re.findall(r"\w+", line)}:
        if (ROOT / "benchmarks" / f"{imported}.py").is_file():
            text += (ROOT / "benchmarks" / f"{imported}.py").read_text()
    return wrong_flags(words[1:], frozenset(FLAG.findall(text)) | {"--help"}, f"scripts/bench {words[0]}")


def wrong_flags(words: Sequence[str], known: frozenset[str], of: str, stop: str = "") -> str:
    """The first flag that is not known, up to a word `stop`."""
    for word in words:
        if stop and word == stop:
            break
        if word.startswith("-") and not re.match(r"-\d", word) and word.partition("=")[0] not in known | {"--"}:
            return f"{of} has no flag {word}"
    return ""


@cache
def extras() -> frozenset[str]:
    """The extras in setup.py."""
    for node in ast.walk(ast.parse((ROOT / "setup.py").read_text())):
        if isinstance(node, ast.keyword) and node.arg == "extras_require" and isinstance(node.value, ast.Dict):
            return frozenset(ast.literal_eval(key) for key in node.value.keys if key is not None)
    raise LookupError("setup.py has no extras_require")


def wrong_extras(words: Sequence[str]) -> str:
    for word in words:
        for found in re.findall(r"^(?:\.|matex_tf)\[([\w,-]+)\]$", word):
            if missing := set(found.split(",")) - extras():
                return f"setup.py has no extra {', '.join(sorted(missing))}"
    return ""
