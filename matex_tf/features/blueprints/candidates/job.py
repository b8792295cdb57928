"""A job that trains candidates of `matex-tf grow`, one after the other: what its ranks run in the place of a script.

    python -m matex_tf -m matex_tf.features.blueprints.candidates.job FOLDER SCRIPT [ARGS ...]

Each candidate is a file in FOLDER, `0.json`, `1.json` and so on, which all ranks wait for. The script is run from its
top for each, in this process, so that Python and TensorFlow start once. `end` ends the job. So does a candidate that
fails: the command then starts another job, and no other candidate gets what is left of this one.
"""

from __future__ import annotations

import gc
import os
import sys
import time

import wrapt

from matex_tf.errors import MatexError
from matex_tf.features.blueprints.candidates import candidate, configs, layers, training
from matex_tf.features.blueprints.candidates.candidate import Candidate
from matex_tf.job.target import Target
from matex_tf.patches.files import callers

END = "end"
_PAUSE = 0.02  # seconds between looks into the folder
_HOOKS = (
    ("keras.src.saving.serialization_lib", configs.install),
    ("keras.src.models.sequential", configs.install),
    ("keras.src.layers", layers.install),
    ("keras.src.backend.tensorflow.trainer", training.install),
)


def main() -> None:
    """Train what comes, until `end`."""
    folder, target = sys.argv[1], Target.read(sys.argv[2:])
    for module, install in _HOOKS:
        wrapt.register_post_import_hook(install, module)
    before, path = list(sys.argv), list(sys.path)
    number = 0
    while (task := _next(folder, number)) is not None:
        now = Candidate.read(task)
        if now.is_last:
            callers.use(
                target.name, target.is_module, target.text
            )  # its files are the script's; those of candidates are not
        candidate.use(now)
        _run(target, now)
        sys.argv[:], sys.path[:] = before, path
        number += 1


def _next(folder: str, number: int) -> str | None:
    """The next candidate's file; None where there is none to come."""
    task, end = os.path.join(folder, f"{number}.json"), os.path.join(folder, END)
    while not os.path.exists(task):
        if os.path.exists(end):
            return None
        time.sleep(_PAUSE)
    return task


def _run(target: Target, now: Candidate) -> None:
    """Run the script for a candidate, to its rung.

    Raises:
        Exception: what the script raised; then the job ends.
    """
    training.begin(now.seed)
    try:
        target.run()
        if candidate.current() is not None:
            raise MatexError(f"{target.name} came to its end without a fit of Keras 3, so nothing was trained.")
    except training.RungReached:
        pass
    except SystemExit as error:
        if not now.is_last or error.code not in (None, 0):
            training.failed(now, f"the script ended with exit code {error.code} before its fit was over")
            raise MatexError(f"{target.name} ended before its fit was over.") from error
    except Exception as error:
        training.failed(now, f"{type(error).__name__}: {error}")
        raise
    gc.collect()


if __name__ == "__main__":
    main()
