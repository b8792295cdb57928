"""Where ranks of a training die: imported by the script that `chaos` runs; told by CHAOS in the environment.

A rank that is to die writes when, and kills itself with SIGKILL. Survivors write when they have recovered.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import time
from typing import Any

_RETRY, _PREDICT = "matex_tf.patches.recovery.", "matex_tf.patches.fit.predict_function"

#: Name of a place: what is called there (with and without a partitioner, if that differs), and how often at least in an
#: undisturbed run of `chaos.SCRIPT`.
PLACES = {
    "forward": ("matex_tf.patches.fit.step.shared_step:SharedStep.__call__", 60),
    "packed": ("matex_tf.exchange.node.barrier:CheckedBarrier._sign", 150),
    "reducing": ("matex_tf.exchange.allreduce:Channel._reduce", 100),
    "a bucket": ("matex_tf.exchange.process_group:ProcessGroup.sum", 150),
    "committing": (f"{_RETRY}step_retry:RecoverableStep.commit {_RETRY}whole_step:WholeStep.commit", 60),
    "counting": (f"{_RETRY}whole_step:WholeStep.count", 40),
    "summing metrics": (f"{_RETRY}step_retry:_sum {_RETRY}whole_step:Values.now", 60),
    "a meeting": ("matex_tf.core.world:World.barrier", 40),
    "a gather": ("matex_tf.core.world:World.allgather", 20),
    "merging metrics": ("matex_tf.patches.keras.metrics:merge", 5),
    "making an arena": ("matex_tf.exchange.process_group:ProcessGroup.__init__", 1),
    "the first broadcast": ("matex_tf.patches.keras.weights:broadcast", 2),
    "predicting": (f"{_PREDICT}:_gather {_PREDICT}:PredictFunction._by_all", 5),
    "writing": ("zipfile:ZipFile.writestr", 3),
}
#: Places that only a run in which another rank has died comes to.
RECOVERING = {
    "revoking": ("matex_tf.core.world:World.revoke", 1),
    "shrinking": ("matex_tf.core.world:World.shrink", 1),
    "settling": ("matex_tf.core.world:World._settle", 1),
    "taking over": (f"{_RETRY}step_retry:_take_over {_RETRY}whole_step:WholeStep.undo", 1),
}


def _wrap(place: str, around: Any) -> None:
    for one in {**PLACES, **RECOVERING}[place][0].split():
        where, _, name = one.partition(":")
        holder: Any = importlib.import_module(where)
        *path, last = name.split(".")
        for part in path:
            holder = getattr(holder, part)
        setattr(holder, last, _wrapped(getattr(holder, last), around))


def _wrapped(original: Any, around: Any) -> Any:
    return functools.wraps(original)(lambda *args, **kwargs: around(original, args, kwargs))


def _die_at(place: str, count: int, delay: float) -> None:
    calls = 0

    def around(original: Any, args: Any, kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            time.sleep(delay)
            die()
        return original(*args, **kwargs)

    _wrap(place, around)


def die() -> None:
    """End this rank as a power cut would."""
    _note("died")
    os.kill(os.getpid(), signal.SIGKILL)


def _note(what: str) -> None:
    with open(f"{what}.{_rank}", "a", encoding="ascii") as file:
        file.write(f"{time.time()}\n")


def _log_recoveries() -> None:
    from matex_tf.faults.transactions import TransactionGuard

    recover = TransactionGuard._recover

    def logged(guard: TransactionGuard) -> Any:
        result = recover(guard)
        _note("recovered")
        return result

    TransactionGuard._recover = logged  # type: ignore[method-assign]


def prepare() -> None:
    """Make ready to die as CHAOS in the environment says."""
    for death in json.loads(os.environ["CHAOS"]):
        if death["rank"] == _rank and death["place"] != "time":
            _die_at(death["place"], death["count"], death["delay"])
    _log_recoveries()
    with open(f"pid.{_rank}", "w", encoding="ascii") as file:
        file.write(str(os.getpid()))


_rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "-1"))
