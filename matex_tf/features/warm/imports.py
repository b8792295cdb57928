"""`--warm-imports`: a rank is forked by a process of its node that has imported TensorFlow and Keras.

What a script sets in its environment before its own import of TensorFlow would come too late.
So a script in which such a variable is seen imports for itself, and one that sets it elsewhere gets a line or, where
another Keras would train, an error.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Sequence
from typing import Any

from matex_tf.core import starting
from matex_tf.launch import slurm

#: What TensorFlow, Keras and what they load read when they are imported, or may read.
_READ = re.compile(
    r"(?:TF|TF2|KERAS|XLA|CUDA|NVIDIA|HIP|ROCR|OMP|KMP|MKL|OPENBLAS|ONEDNN|DNNL|PROTOCOL_BUFFERS|GRPC)_\w+"
)
_SETS = re.compile(rf"(?:environ|putenv).{{0,60}}?['\"]({_READ.pattern})['\"]", re.DOTALL)
#: Of these, what only says how much is printed, and what is read when it is needed.
_LATER = re.compile(r"TF_CPP_\w+|TF_NUM_\w+_THREADS|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS|TF_CONFIG")
#: Which Keras trains.
_OTHER_KERAS = {"KERAS_BACKEND": "tensorflow", "TF_USE_LEGACY_KERAS": ""}
_LONGEST_SCRIPT = 1 << 22
#: With `auto`: as many ranks share a core, and the script imports this.
_RANKS_OF_A_CORE = 4
_MODULE = re.compile(r"^\s*(?:import|from)\s+(\w+)", re.MULTILINE)
_IMPORTS = re.compile(r"^(?:import|from) +(?:tensorflow|keras|tf_keras)\b", re.MULTILINE)


def enter(arguments: Sequence[str]) -> None:
    """Before anything is imported: be a rank that has imported already, where that is asked for and can be.

    Returns in the process that is the rank from now on.

    Args:
        arguments: of `python -m matex_tf`.
    """
    if not starting.started_by_mpi():
        return
    flagged = any(word.startswith("--warm-imports") for word in arguments)
    expected = slurm.ranks_here()
    if not (flagged or _crowded(expected) or "MATEX_WARM_IMPORTS" in os.environ):
        return
    from matex_tf import settings
    from matex_tf.errors import MatexError
    from matex_tf.features.warm.options import WarmOptions
    from matex_tf.job import command_line
    from matex_tf.job.target import Target

    try:
        given = command_line.of_python().parse(arguments)
        if given is None:
            return
        wanted = settings.Settings.read(given.flags)
        target = Target.read(given.rest)
    except (MatexError, BrokenPipeError):
        return  # which the rank will find out, and say
    if not asked_for(setting := wanted.of(WarmOptions).warm_imports, expected, target):
        return
    from matex_tf.features.warm import meeting_point
    from matex_tf.features.warm.process import Refused

    drawn: list[Any] = []
    try:
        if name := set_by_script(target):
            raise Refused(f"the script sets {name}, which is read at import: set it in the environment of the job")
        meeting_point.enter(lambda: drawn.append(_import(target, wanted)), expected)
    except Refused as reason:
        if wanted.notes and setting == "on":
            print(
                f"matex_tf: --warm-imports: this rank imports TensorFlow for itself: {reason}",
                file=sys.stderr,
                flush=True,
            )
        return
    random.setstate(drawn[0])  # a fork has Python seed it anew
    _watch_environment()


def asked_for(setting: str, ranks: int, target: Any) -> bool:
    """Whether a process of the node is to import for its ranks.

    Args:
        setting: `--warm-imports`.
        ranks: of the job on this node; 0 where that is not known.
        target: a `Target`.
    """
    if setting == "auto":
        return _crowded(ranks) and _IMPORTS.search(_text(target)) is not None
    return setting == "on" and ranks != 1


def set_by_script(target: Any) -> str:
    """The variable that a script, or a module beside it that it imports, sets itself though it is read when TensorFlow
    is imported; empty where none is seen.

    Args:
        target: a `Target`. Of a module only the environment that it sets as it runs is looked at.
    """
    text, folder = _text(target), os.path.dirname(target.name)
    beside = [os.path.join(folder, f"{name}.py") for name in dict.fromkeys(_MODULE.findall(text))]
    named = (name for part in (text, *map(_read, beside)) for name in _SETS.findall(part))
    return next((name for name in named if not _LATER.fullmatch(name)), "")


def _text(target: Any) -> str:
    return "" if target.is_module else target.text or _read(target.name)


def _read(path: str) -> str:
    """The text of a file of Python; "" where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_LONGEST_SCRIPT)
    except OSError:
        return ""


def _crowded(ranks: int) -> bool:
    return ranks >= _RANKS_OF_A_CORE * (os.cpu_count() or 1)


def _import(target: Any, wanted: Any) -> Any:
    """What a rank imports before its first step, patched and seeded as on a rank: in the process that ranks are forked
    from. Returns the state of Python's generator after that."""
    from matex_tf import settings
    from matex_tf.core import world

    path, before = sys.path, list(sys.path)
    settings.use(wanted)
    from matex_tf.job import run

    if target.is_in_a_file and not target.is_module:
        sys.path[0] = os.path.dirname(os.path.realpath(target.name))  # as the script will find modules
    import_all(run.set_seeds(world.World(), max(wanted.seed, 0)))
    path[:] = before
    sys.path = path  # in the place of which cv2 puts another list
    return random.getstate()


def import_all(seed: int) -> None:
    """Import TensorFlow, Keras and what exchanges, patched, in the order of a rank.

    Begins no MPI, and makes no context of TensorFlow: neither is of use in another process.

    Args:
        seed: of the job.

    Raises:
        ImportError: where KERAS_BACKEND is not tensorflow.
        RuntimeError: where an import has made TensorFlow's context.
    """
    from matex_tf import patches
    from matex_tf.core import world

    patches.prepare(seed)
    import tensorflow  # after the patches, as on any rank

    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        raise ImportError("KERAS_BACKEND is not tensorflow")
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    try:
        tensorflow.keras.layers  # noqa: B018
        if not legacy:
            import keras  # noqa: F401
    except ImportError:  # a TensorFlow without Keras
        pass
    from tensorflow.python.eager import context

    import matex_tf.exchange.process_group
    import matex_tf.exchange.tf_op  # noqa: F401

    if context.context_safe() is not None:
        raise RuntimeError("importing has made TensorFlow's context")
    world.adopt(None)  # the world of one that was asked for meanwhile


def _watch_environment() -> None:
    """Say what the script sets too late, see the top."""
    from matex_tf.errors import SettingError
    from matex_tf.patches.common import log_once

    imported_with, said, putenv = dict(os.environ), set(), os.putenv

    def watched(name: Any, value: Any) -> None:
        putenv(name, value)
        key, text = os.fsdecode(name), os.fsdecode(value)
        if not _READ.fullmatch(key) or _LATER.fullmatch(key) or imported_with.get(key) == text or key in said:
            return
        said.add(key)
        if key in _OTHER_KERAS and text not in (imported_with.get(key), _OTHER_KERAS[key], "0"):
            raise SettingError(
                f"the script sets {key} to {text!r}, after --warm-imports has imported Keras without it: set it in the "
                "environment of the job, or take --warm-imports off."
            )
        log_once.log(
            f"the script sets {key}, after --warm-imports has imported TensorFlow: if TensorFlow reads it at import, "
            "it has no effect. Set it in the environment of the job, or take --warm-imports off"
        )

    os.putenv = watched
