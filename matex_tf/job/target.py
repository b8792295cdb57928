"""What a job runs: a script or a module, in this process, as Python itself would run it."""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import runpy
import sys
import types
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

from matex_tf.errors import SettingError

USAGE = "python -m matex_tf [--setting VALUE ...] (SCRIPT | -m MODULE) [ARGS ...]"


@dataclass(frozen=True)
class Target:
    """What to run: a script or, where `is_module`, a module; and its arguments."""

    name: str
    arguments: tuple[str, ...]
    is_module: bool = False

    @classmethod
    def read(cls, words: Sequence[str]) -> Target:
        """The target from what a command line has after its options.

        Raises:
            SettingError: there is no script, or something in its place that cannot be one.
        """
        if not words:
            raise SettingError(f"there is no script to run. usage: {USAGE}")
        if words[0] == "-m":
            if len(words) == 1:
                raise SettingError("-m needs the name of a module.")
            return cls(words[1], tuple(words[2:]), is_module=True)
        if words[0].startswith("-"):
            raise SettingError(f"{words[0]} cannot be the name of a script. usage: {USAGE}")
        return cls(words[0], tuple(words[1:]))

    @property
    def words(self) -> list[str]:
        """The target as a command line has it."""
        return [*(["-m"] if self.is_module else []), self.name, *self.arguments]

    def require(self) -> None:
        """See that a script is there.

        Raises:
            SettingError: it is not.
        """
        if not self.is_module and not os.path.exists(self.name):
            raise SettingError(f"there is no script {self.name}.")

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
        self.require()
        if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
            sys.path[0] = os.path.dirname(os.path.realpath(self.name))
        path = os.path.abspath(self.name)
        if os.path.isdir(path) or zipfile.is_zipfile(path):
            runpy.run_path(path, run_name="__main__")
            return
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        module = types.ModuleType("__main__")
        module.__dict__.update(__file__=path, __loader__=loader, __builtins__=builtins, __cached__=None)
        sys.modules["__main__"] = module
        exec(loader.source_to_code(loader.get_data(path), path), module.__dict__)
