"""What ranks compare where they meet, and how it is said that they differ."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any


def fingerprint(what: str, details: Sequence[str]) -> tuple[int, int]:
    """What ranks compare of a purpose and its details: two checksums of 32 bits.

    Args:
        what: the purpose, in words.
        details: what ranks must have in common, such as names and dtypes.
    """
    return checksum(what), checksum("\0".join(details))


def checksum(content: Any, before: int = 0) -> int:
    """32 bits of what ranks compare: the same for the same content.

    Args:
        content: text, bytes, or an array of any dtype.
        before: the checksum of what comes before it.
    """
    if isinstance(content, str):
        content = content.encode()
    elif hasattr(content, "dtype"):
        # The bytes of an array are not copied; those of a dtype such as bfloat16 are no buffer that Python knows.
        content = repr(content.tolist()).encode() if content.dtype.hasobject else content.ravel().view("uint8")
    return zlib.crc32(content, before)


def difference(everyone: Sequence[tuple[str, tuple[str, ...], str]], ranks: Sequence[int] | None = None) -> str:
    """The message of RanksDisagree.

    Args:
        everyone: what each rank is about to do, its details, and where it is in its script.
        ranks: whose these are; all ranks where it is None.
    """
    ranks = range(len(everyone)) if ranks is None else ranks
    doing: dict[str, list[int]] = {}
    for rank, (what, _, where) in zip(ranks, everyone, strict=True):
        doing.setdefault(f"{what} ({where})" if where else what, []).append(rank)
    if len({what for what, _, _ in everyone}) > 1:
        parts = "; ".join(f"{name_ranks(some)}: {what}" for what, some in doing.items())
        return (
            f"the ranks have gone different ways. {parts}. Every rank must take the same steps: look for a loop that "
            "one rank leaves early, a dataset that is shorter on one rank, or a branch that depends on the host or "
            "on the time."
        )
    details = [detail for _, detail, _ in everyone]
    items: list[str] = []
    for position in range(max(map(len, details))):
        seen: dict[str, list[int]] = {}
        for rank, detail in zip(ranks, details, strict=True):
            seen.setdefault(detail[position] if position < len(detail) else "nothing", []).append(rank)
        if len(seen) > 1:
            items = [f"{name_ranks(some)}: {item}" for item, some in seen.items()]
            break
    counts = sorted({len(detail) for detail in details})
    size = f" ({' or '.join(map(str, counts))} items)" if len(counts) > 1 else ""
    return f"the ranks differ in: {everyone[0][0]}{size}. {'; '.join(items)}."


def name_ranks(ranks: Sequence[int]) -> str:
    """[3] to "rank 3", [0, 2, 3] to "ranks 0, 2-3"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
