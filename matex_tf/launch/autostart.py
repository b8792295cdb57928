"""Imported at the start of Python where MATEX_TF=1: turns `python SCRIPT` into `python -m matex_tf SCRIPT`.

Only in a process that an MPI launcher started. The variable is taken out of the environment, so that processes which
the script starts are ordinary ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from matex_tf.core.starting import settle_hashes, started_by_mpi

_WITH_VALUE = "WX"  # interpreter flags that may have their value in the next word


def command(argv: Sequence[str]) -> list[str] | None:
    """The command line that runs the same under matex_tf; None where there is no script to run.

    Args:
        argv: the command line of this interpreter, as `sys.orig_argv` has it.
    """
    words = list(argv[1:])
    flags: list[str] = []
    while words:
        word = words.pop(0)
        if word == "-" or not word.startswith("-"):
            return None if word == "-" else [*flags, "-m", "matex_tf", word, *words]
        if word.startswith("--"):
            flags.append(word)
            if word == "--check-hash-based-pycs" and words:
                flags.append(words.pop(0))
            continue
        letter = next((c for c in word[1:] if c in _WITH_VALUE + "mc"), "")
        before, _, value = word.partition(letter) if letter else (word, "", "")
        if letter == "c":
            return None
        if letter == "m":
            module = value or (words.pop(0) if words else "")
            if not module or module.split(".")[0] == "matex_tf":
                return None
            return [*flags, *([before] if before != "-" else []), "-m", "matex_tf", "-m", module, *words]
        flags.append(word)
        if letter and not value and words:
            flags.append(words.pop(0))
    return None


def start() -> None:
    """Replace this process by one that runs its script under matex_tf, where there is reason to."""
    if not started_by_mpi():
        return
    arguments = command(sys.orig_argv)
    os.environ.pop("MATEX_TF", None)
    if arguments is not None and sys.executable:
        settle_hashes(os.environ)
        os.execv(sys.executable, [sys.executable, *arguments])


start()
