"""Settings that do not go together, each refused in words that name both and say what to take instead."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from matex_tf.errors import SettingError
from matex_tf.features import registry
from matex_tf.settings.declaration import flag_name

if TYPE_CHECKING:
    from matex_tf.settings.run_settings import Settings


def refuse(settings: Settings, asked: str, others: Mapping[str, tuple[tuple[Any, ...], str]]) -> None:
    """Refuse what does not go together with one setting.

    Args:
        asked: its flag, with its value if that says more.
        others: for other settings, by their names, the values that they may have, the first of which to take instead,
            and why: a clause without a full stop.

    Raises:
        SettingError: one of the others has another value.
    """
    values = settings.values()
    for name, (allowed, why) in others.items():
        if name in values and (value := values[name]) not in allowed:  # a feature may be missing
            shown, take = (("off", "on")[one] if isinstance(one, bool) else one for one in (value, allowed[0]))
            instead = f"Take {flag_name(name)} {take}" if allowed[0] else f"Leave out {flag_name(name)}"
            raise SettingError(
                f"{asked} and {flag_name(name)} {shown} do not go together: {why}. {instead}, or leave out {asked}."
            )


def check(settings: Settings, ranks: int) -> None:
    """Refuse what the core cannot do together; what strategies and features cannot do, they refuse themselves.

    Args:
        ranks: how many train; 0 if nobody knows yet.

    Raises:
        SettingError: what does not go together, and what to take instead.
    """
    _check_reproducible(settings, ranks)
    _check_horovod(settings, ranks)
    _check_watch(settings)
    _check_shard(settings)


def _check_watch(settings: Settings) -> None:
    """Refuse what needs the reports of ranks that do not report."""
    if settings.progress == "on" and not settings.watch:
        raise SettingError("--progress shows what ranks report, and with --watch off they do not: leave out one.")


def _check_shard(settings: Settings) -> None:
    """Refuse what does not go together with variables in parts."""
    if settings.shard == "none":
        return
    others = {
        "partitioner": ((True,), "parts are made when a step is rebuilt for rows"),
        "strategy": (("sync",), "its ranks have weights of their own, or updates that come late"),
        "reproducible": ((0,), "a step of virtual ranks is not rebuilt for rows"),
        "batch_norm": (("batch",), "such a step is not rebuilt for rows"),
        "transport": (("mpi",), "Horovod gives every rank whole gradients"),
        "codec": (("none",), "gradients that become parts are not encoded"),
    }
    refuse(settings, f"--shard {settings.shard}", others)


def _check_reproducible(settings: Settings, ranks: int) -> None:
    """Refuse what gives other bits on other numbers of ranks."""
    if not settings.reproducible:
        return
    allowed = {
        "strategy": ("sync",),
        "codec": ("none",),
        "batch": ("global",),
        "data": ("exact", "whole"),
        "rows": ("auto", "shared"),
        "schedule": ("chained",),
        "shard_loops": (True,),
    }
    why = "the bits would depend on the number of ranks"
    refuse(settings, "--reproducible", {name: (values, why) for name, values in allowed.items()})
    if ranks > settings.reproducible:
        raise SettingError(
            f"--reproducible {settings.reproducible} is for at most {settings.reproducible} ranks, and there are "
            f"{ranks}: give it the largest number of ranks that the script shall ever have."
        )


def _check_horovod(settings: Settings, ranks: int) -> None:
    """Refuse what Horovod cannot do, and Horovod if several ranks are about to run and it is not installed."""
    if settings.transport != "horovod":
        return
    others = {
        "strategy": (("sync",), "Horovod adds up gradients in the step that computes them"),
        "codec": (("none",), "Horovod sends gradients as they are"),
        "faults": (("abort", *registry.faults()), "Horovod cannot go on without a rank that has died"),
        "schedule": (("chained",), "Horovod has a thread of its own, and sends what is there"),
        "reproducible": ((0,), "the order in which Horovod adds up depends on the number of ranks"),
    }
    refuse(settings, "--transport horovod", others)
    found = importlib.machinery.PathFinder.find_spec("horovod")  # not the names that matex_tf serves
    if ranks > 1 and (found is None or found.origin is None):
        raise SettingError(
            f"--transport horovod needs Horovod, and {sys.executable} has none. Install it (docs/exchange.md, "
            "Horovod as the transport; 0.28.1 builds for TensorFlow 2.15 at the latest), or leave out --transport "
            "horovod."
        )
