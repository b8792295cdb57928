"""The account of a job: what was shared out among ranks, and what trained on each rank by itself.

Whatever shares out work notes it here, and so does whatever sees training that nobody shares out: the gradients of a
loop, a session, another framework. At the end a job whose ranks all did the same work says so, and why; with
`--require-sharing` it ends at the first step that is not shared out.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import sysconfig
from pathlib import Path

import matex_tf
from matex_tf import errors, settings
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.patches.common import log_once, wrapping
from matex_tf.state import run_state

#: What may train without being shared out, and what to do about it: other frameworks, then TensorFlow.
OTHERS = {
    "tf_keras": (
        "tf_keras (Keras 2)",
        "matex_tf splits fit and train_on_batch of it, and loops over a batched tf.data pipeline (docs/keras2.md)",
    ),
    "keras": (
        "Keras on {backend}",
        "matex_tf splits Keras on TensorFlow: set KERAS_BACKEND=tensorflow",
    ),
    "torch": ("PyTorch", "matex_tf splits TensorFlow and Keras; PyTorch has torch.distributed"),
    "jax": ("JAX", "matex_tf splits TensorFlow, and fit of Keras; JAX has jax.distributed"),
}
OWN = {
    "strategy": (
        "a loop in the scope of a tf.distribute strategy",
        "remove the strategy, and iterate over the batched tf.data pipeline itself",
    ),
    "loop": (
        "a loop of the script's own",
        "compile the step by tf.function, or iterate over a batched tf.data pipeline, and each batch is split "
        "(docs/loops.md)",
    ),
    "session": (
        "runs of a session",
        "feed arrays to placeholders whose first dimension is open, and they are split (docs/loops.md)",
    ),
}
_FRAMEWORKS = ("tensorflow", "keras", "tf_keras", "torch", "jax")

#: In the text of a script that divides its work by itself.
_SPEAKS_OF_RANKS = re.compile(
    r"\b(mpi4py|horovod|DataSet|torch\.distributed|jax\.distributed|OMPI_COMM_WORLD_\w+|PMIX?_(RANK|SIZE)"
    r"|SLURM_(PROCID|LOCALID|NTASKS))\b"
)


@dataclasses.dataclass
class Account:
    """The account of a job.

    Attributes:
        shared: whether any work was shared out.
        trained_together: whether training was.
        alone: what trains on each rank by itself, by its key: its name, and what to do.
    """

    shared: bool = False
    trained_together: bool = False
    alone: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)


def shared(training: bool = True) -> None:
    """Note that work was shared out; training, or else evaluation and the like."""
    account = run_state.current().part(Account)
    account.shared = True
    account.trained_together |= training


def trained(what: str, said: tuple[str, str] | None = None, **words: str) -> None:
    """Note that something trains on each rank by itself.

    Args:
        what: a key of `OTHERS` or `OWN`, or one of a feature's.
        said: a feature's name for it, and what to do.
        words: for the places in its text.

    Raises:
        MatexError: with `--require-sharing`.
    """
    account = run_state.current().part(Account)
    if what in account.alone or wrapping.is_aside() or wrapping.alone():
        return
    name, advice = said or OTHERS.get(what) or OWN[what]
    account.alone[what] = name.format(**words), advice
    if settings.current().require_sharing:
        error = MatexError(  # AutoGraph makes a longer one of it
            f"--require-sharing: a training step of {account.alone[what][0]} is not split, each of "
            f"{world.current().size} ranks would do all of it. To do: {advice}."
        )
        errors.remember(error)
        raise error


def uncovered(what: str) -> None:
    """Say where training begins that ends with a rank, whatever `--faults shrink` does for other training; see
    `held_whole` too."""
    if world.current().guard is not None and not wrapping.is_aside():
        log_once.log(
            f"a rank that dies in {what} ends the job: --faults shrink covers fit, evaluate and predict, and compiled "
            "steps (docs/faults.md)"
        )
    held_whole(what)


def held_whole(what: str) -> None:
    """Say where training begins that has all of its state on every rank, whatever `--shard` says."""
    if settings.current().shard != "none" and not wrapping.is_aside():
        log_once.log(f"every rank holds all that {what} trains: --shard covers fit and train_on_batch")


def finish() -> None:
    """At the end of the script, say so where the ranks have all done the same work.

    Raises:
        MatexError: that is so, with `--require-sharing`.
    """
    if wrapping.is_aside() or wrapping.alone():
        return
    text = summary(run_state.current().part(Account), world.current().size)
    if text and settings.current().require_sharing:
        raise MatexError(f"{text} (--require-sharing)")
    if text:
        log_once.log(text)


def summary(account: Account, size: int) -> str:
    """What the `account` of so many ranks, `size`, comes to, in words; empty where all is well."""
    alone = {what: said for what, said in account.alone.items() if what not in OWN or not account.trained_together}
    if not alone:
        if account.shared or not any(name in sys.modules for name in _FRAMEWORKS) or speaks_of_ranks():
            return ""
        return (
            f"nothing was split: no training was seen, nor evaluate or predict of Keras, so each of {size} ranks "
            "did the whole work. For what does not train, one rank is enough"
        )
    what = " and ".join(name for name, _ in alone.values())
    if speaks_of_ranks():
        return f"what {what} trained was not split; the script knows of ranks, and is taken to do that by itself"
    much = "not all" if account.shared else "nothing"
    return (
        f"{much} was split: {what} trained on each of {size} ranks, on all rows, and {size} ranks did the work of "
        f"one. To do: {'; '.join(advice for _, advice in alone.values())}"
    )


def speaks_of_ranks() -> bool:
    """Whether the script asks which rank it is, and so may divide its work by itself."""
    return bool(run_state.current().asked) or any(_SPEAKS_OF_RANKS.search(_text(path)) for path in _own_files())


def of_the_script(path: str) -> bool:
    """Whether a file is the script's own, and not that of Python, an installed package or matex_tf."""
    return not path.startswith(("<", *_INSTALLED)) and not any(f"/{name}/" in path for name in _PACKAGES)


_PACKAGES = ("site-packages", "dist-packages")
_INSTALLED = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {os.path.dirname(os.path.realpath(path)) + os.sep for path in (matex_tf.__file__, os.path.dirname(__file__))}
)


def _own_files() -> list[str]:
    """The files of the script: its own modules, and those of an installed package that was started by `-m`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    package = spec.name.partition(".")[0] if spec else "__main__"
    found = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        top = name.partition(".")[0]
        if isinstance(path, str) and top != "matex_tf" and (of_the_script(path) or top == package):
            found.append(path)
    return found


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace") if path.endswith(".py") else ""
    except OSError:
        return ""
