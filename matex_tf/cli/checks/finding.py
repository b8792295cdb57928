"""A line of the table that `matex-tf doctor` prints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A line of the table: what, what was found, how good that is ("ok", "check", "bad"), and what to do."""

    what: str
    found: str
    state: str = "ok"
    advice: str = ""
