"""Libraries that write files by themselves, by C or by ways of their own: with private layers each rank has its own.

Where layers were wanted and cannot be had, a line says so as soon as one of them is imported: every rank writes there.

Relies on their documents, which say that they write.
"""

from __future__ import annotations

from types import ModuleType

from matex_tf.patches.common import active_flag, log_once, wrapping


def install(module: ModuleType) -> None:
    """Say that every rank writes what this module writes."""
    refused = active_flag.layers().refused
    if refused and not wrapping.is_only_rank():
        log_once.log(
            f"{module.__name__} is imported, which may write files by itself: every rank writes them, for there are no "
            f"private layers ({refused}; docs/files.md)"
        )
