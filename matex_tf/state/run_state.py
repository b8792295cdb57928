"""What this process knows of the one script that it runs, beside its world and its settings.

Keras, TensorFlow and Python call what is patched, and hand nothing of ours along. So what a patch has to know of the
script as a whole is found here. A room says itself what that is: a class of its own, of which a run has one. What a
caller can hand on is not kept here; what belongs to a model, a step or a graph is kept with that (`notes`,
`model_state`, `batch_share`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

_Part = TypeVar("_Part")


class Devices(NamedTuple):
    """The GPUs of the node.

    Attributes:
        listed: what CUDA_VISIBLE_DEVICES was before the ranks of the node got one each; None where it was not set.
        shared_out: whether they did.
    """

    listed: str | None = None
    shared_out: bool = False


class RunState:
    """What is known of a run.

    Attributes:
        asked: what the script has asked `matex_tf` for that tells it which rank it is.
        prepared: the seed with which what is patched was imported, if that was in a process from which this one was
            forked (`patches.prepare`); else None.
        patched: whether the patches are in place: this process is a rank of a run.
        aside: whether they step aside: the script imports Horovod's names, so it shares out and averages by itself.
        trained: training steps of `fit` and `train_on_batch`, of all models.
        waiting: patches of modules that were imported before TensorFlow was complete.
    """

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.prepared: int | None = None
        self.patched = self.aside = False
        self.trained = 0
        self.waiting: list[Callable[[], None]] = []
        self._parts: dict[type[Any], Any] = {}

    def part(self, kind: type[_Part]) -> _Part:
        """The one of this class that the run has; made, without arguments, where there is none yet."""
        found = self._parts.get(kind)
        return cast(_Part, self._parts.setdefault(kind, kind()) if found is None else found)

    def begin(self, part: Any) -> None:
        """Have this one from now on, in the place of another of its class."""
        self._parts[type(part)] = part


_run = RunState()  # one, and never another: a process runs one script, and names are patched once in a process


def current() -> RunState:
    """The run of this process."""
    return _run


def part(kind: type[_Part]) -> _Part:
    """See `RunState.part`, of the run of this process."""
    return _run.part(kind)
