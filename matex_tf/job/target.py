"""What a job runs: a script or a module, in this process, as Python itself would run it."""

from __future__ import annotations

import base64
import builtins
import gzip
import importlib.machinery
import importlib.util
import os
import runpy
import sys
import types
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

from matex_tf.errors import SettingError

USAGE = "python -m matex_tf [--setting VALUE ...] (SCRIPT | -m MODULE | -c CODE | -) [ARGS ...]"

#: In the environment of ranks, the text of a script that only the launcher can read, and the most that Linux takes.
TEXT = "MATEX_SCRIPT"
_MOST = 120_000

#: What Python calls the text of these.
_FILES = {"-c": "<string>", "-": "<stdin>"}


@dataclass(frozen=True)
class Target:
    """What to run: a script or, where `is_module`, a module; and its arguments.

    Attributes:
        name: of a file or a module; "-c" for code, "-" for a script from standard input.
        code: that of "-c".
    """

    name: str
    arguments: tuple[str, ...]
    is_module: bool = False
    code: str = ""

    @classmethod
    def read(cls, words: Sequence[str]) -> Target:
        """The target from what a command line has after its options.

        Raises:
            SettingError: there is no script, or something in its place that cannot be one.
        """
        if not words:
            raise SettingError(f"there is no script to run. usage: {USAGE}")
        if words[0] in ("-m", "-c"):
            if len(words) == 1:
                raise SettingError("-m needs the name of a module." if words[0] == "-m" else "-c needs code.")
            if words[0] == "-m":
                return cls(words[1], tuple(words[2:]), is_module=True)
            return cls("-c", tuple(words[2:]), code=words[1])
        if words[0].startswith("-") and words[0] != "-":
            raise SettingError(f"{words[0]} cannot be the name of a script. usage: {USAGE}")
        return cls(words[0], tuple(words[1:]))

    @property
    def words(self) -> list[str]:
        """The target as a command line has it."""
        return [*(["-m"] if self.is_module else []), self.name, *([self.code] if self.code else []), *self.arguments]

    @property
    def is_in_a_file(self) -> bool:
        """Whether ranks can read it by its name, be it a module: what the launcher was given open is no such file."""
        place = os.path.abspath(self.name)
        return self.name not in _FILES and not place.startswith(("/dev/", "/proc/"))

    @property
    def text(self) -> str:
        """The source, of what is in no file, for a rank; else "".

        Raises:
            SettingError: the launcher has not handed it on.
        """
        if self.code or self.is_in_a_file:
            return self.code
        if TEXT not in os.environ:
            raise SettingError(f"only matex-tf run can hand the script {self.name} on to ranks: save it in a file.")
        return importlib.util.decode_source(gzip.decompress(base64.b64decode(os.environ[TEXT])))

    @property
    def file(self) -> str:
        """What tracebacks call the file of the source."""
        return _FILES.get(self.name, self.name)

    def require(self) -> None:
        """See that a script is there, and hand it on in the environment where ranks cannot read it.

        Raises:
            SettingError: it is not, or it cannot be handed on.
        """
        if self.is_module or self.code:
            return
        if self.name != "-" and not os.path.exists(self.name):
            raise SettingError(f"there is no script {self.name}.")
        if self.name.endswith(".ipynb"):
            raise SettingError(
                f"{self.name} is a notebook, and Python runs scripts: jupyter nbconvert --to script {self.name} makes "
                "one of it."
            )
        if self.is_in_a_file or TEXT in os.environ:
            return
        with open(0 if self.name == "-" else self.name, "rb", closefd=self.name != "-") as file:
            if file.isatty():
                raise SettingError(f"the script {self.name} would have to be typed in: save it in a file.")
            packed = base64.b64encode(gzip.compress(file.read())).decode()
        if len(packed) > _MOST:
            raise SettingError(f"the script {self.name} is too long to be sent to ranks: save it in a file.")
        os.environ[TEXT] = packed

    @property
    def is_pytest(self) -> bool:
        """Whether this is pytest, which is given a plugin that lets the ranks meet between tests."""
        return self.name in ("pytest", "py.test") if self.is_module else os.path.basename(self.name) == "pytest"

    def run(self) -> None:
        """Run it in this process as `__main__`, as Python itself would."""
        plugin = ("-p", "matex_tf.pytest_plugin") if self.is_pytest else ()
        sys.argv[:] = [self.name, *plugin, *self.arguments]
        if self.is_module:
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
            return
        if self.is_in_a_file:
            self.require()
        text = self.text
        os.environ.pop(TEXT, None)
        if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
            sys.path[0] = "" if self.name in _FILES else os.path.dirname(os.path.realpath(self.name))
        path = os.path.abspath(self.name)
        if self.is_in_a_file and (os.path.isdir(path) or zipfile.is_zipfile(path)):
            runpy.run_path(path, run_name="__main__")
            return
        module = types.ModuleType("__main__")
        module.__dict__.update(__builtins__=builtins)
        sys.modules["__main__"] = module
        if not self.is_in_a_file:
            if not self.code:
                module.__dict__.update(__file__=self.file, __cached__=None)
            exec(compile(text, self.file, "exec", dont_inherit=True), module.__dict__)
            return
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        module.__dict__.update(__file__=path, __loader__=loader, __cached__=None)
        exec(loader.source_to_code(loader.get_data(path), path), module.__dict__)
