"""`subprocess.Popen` and `os.popen`: one rank starts the program; what the others hold tells what that one finds.

Waiting, polling, `communicate` and reading from the program's pipes are calls that one rank does for all, like the
start; what is written to its input goes there from one rank.

Relies on: `subprocess.Popen.__init__`, `poll`, `wait`, `communicate`, `send_signal`, `__exit__`, `args`, `pid`,
`returncode`, `stdin`, `stdout`, `stderr`, `os.popen`, public; `Popen._child_created`, private (Python 3.10 to 3.14).
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from matex_tf.errors import MatexError
from matex_tf.patches.files import callers, once
from matex_tf.patches.files.handles import kinds
from matex_tf.patches.files.once import Call
from matex_tf.patches.files.wrapping import wrap
from matex_tf.state import notes


@dataclasses.dataclass(frozen=True)
class _Started(notes.Inside):
    """Of a `Popen`: the call, and whether this rank has started the program."""

    call: Call
    here: bool


def install(module: ModuleType) -> None:
    """Patch subprocess or os."""
    if module.__name__ == "os":
        wrap(module, "popen", _popen)
        return
    wrap(module, "Popen.__init__", _start)
    for name in ("poll", "wait", "communicate", "send_signal", "__exit__"):
        wrap(module, f"Popen.{name}", _method(name))


def _start(wrapped: Any, process: Any, args: Any, kwargs: Any) -> None:
    where = callers.caller()
    if not where:
        return wrapped(*args, **kwargs)
    call = Call("Popen", where, once.describe(args, kwargs), os.fspath(kwargs.get("cwd") or "."))

    def act() -> None:
        wrapped(*args, **kwargs)
        notes.put(process, _Started(call, here=True))
        for name in ("stdout", "stderr"):
            if getattr(process, name) is not None:
                setattr(process, name, _Pipe(getattr(process, name), call, name))

    def tell(result: None) -> Any:
        pipes = [getattr(process, name) for name in ("stdin", "stdout", "stderr")]
        return process.args, process.pid, [pipe is not None for pipe in pipes], hasattr(pipes[0], "encoding")

    def elsewhere(sent: Any) -> None:
        process.args, process.pid, pipes, text = sent
        process.returncode, process._child_created = None, False
        process.stdin, process.stdout, process.stderr = (
            _no_input(text) if pipes[0] else None,
            _Pipe(None, call, "stdout") if pipes[1] else None,
            _Pipe(None, call, "stderr") if pipes[2] else None,
        )
        notes.put(process, _Started(call, here=False))

    process._child_created = False
    return once.do(call, act, tell, elsewhere, lambda: wrapped(*args, **kwargs))


def _no_input(text: bool) -> Any:
    binary = io.BufferedWriter(kinds.Sink("<stdin>", "w", 0))
    return io.TextIOWrapper(binary) if text else binary


def _method(name: str) -> Any:
    def wrapper(wrapped: Any, process: Any, args: Any, kwargs: Any) -> Any:
        known = notes.found(process, _Started)
        if known is None:
            return wrapped(*args, **kwargs)
        started = known.call

        def elsewhere(sent: Any) -> Any:
            result, process.returncode = sent
            return result

        return _for_all(
            Call(f"Popen.{name}", callers.caller(), (*started.details, *once.describe(args, kwargs)), started.folder),
            known.here,
            lambda: wrapped(*args, **kwargs),
            lambda result: (result, process.returncode),
            elsewhere,
        )

    return wrapper


def _for_all(
    call: Call,
    here: bool,
    act: Callable[[], Any],
    tell: Callable[[Any], Any] = lambda result: result,
    elsewhere: Callable[[Any], Any] = lambda sent: sent,
) -> Any:
    """Do something with a program on the rank that started it, for all ranks where they come to it together."""

    def alone() -> Any:
        if here:
            return act()
        raise MatexError(
            f"{call.name} of a program that another rank started, in a place to which not all ranks come: take "
            "--files every-rank."
        )

    def gone() -> Any:
        raise MatexError(f"{call.what}: the rank that started this program has died.")

    return once.do(call, act if here else gone, tell, elsewhere, alone) if call.where else alone()


class _Pipe:
    """The output of a program, as all ranks read it.

    Args:
        file: the pipe; None where another rank has it.
    """

    def __init__(self, file: Any, call: Call, name: str):
        self._file, self._call, self._name = file, call, name
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        if self.__dict__.get("_file") is None:
            raise AttributeError(f"{name} of a pipe that another rank has: take --files every-rank.")
        return getattr(self._file, name)

    def _read(self, method: str, *args: Any) -> Any:
        where = callers.caller()
        call = Call(f"{self._name}.{method}", where, (*self._call.details, *once.describe(args, {})), self._call.folder)
        return _for_all(call, self._file is not None, lambda: getattr(self._file, method)(*args))

    def read(self, *args: Any) -> Any:
        return self._read("read", *args)

    def read1(self, *args: Any) -> Any:
        return self._read("read1", *args)

    def readline(self, *args: Any) -> Any:
        return self._read("readline", *args)

    def readlines(self, *args: Any) -> Any:
        return self._read("readlines", *args)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        line = self._read("readline")
        if not line:
            raise StopIteration
        return line

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> _Pipe:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


class _Said(io.StringIO):
    """What a command of `os.popen` has printed; closing it gives how it ended."""

    def __init__(self, text: str, status: int | None):
        super().__init__(text)
        self._status = status

    def close(self) -> int | None:  # type: ignore[override]
        super().close()
        return self._status


def _popen(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
    where = callers.caller()
    if not where:
        return wrapped(*args, **kwargs)
    call = Call("os.popen", where, once.describe(args, kwargs))
    if mode != "r":
        return once.do(call, lambda: wrapped(*args, **kwargs), lambda opened: None, lambda sent: _no_input(True))

    def read() -> tuple[str, int | None]:
        pipe = wrapped(*args, **kwargs)
        return pipe.read(), pipe.close()

    return _Said(*once.do(call, read))
