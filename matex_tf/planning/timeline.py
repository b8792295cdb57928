"""The steps of a timeline that a run with `--trace` has written."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matex_tf.errors import DataError

#: Parts of an exchange.
EXCHANGE = ("pack", "wait", "reduce", "network", "agree")


@dataclass
class Step:
    """One step of one rank.

    Attributes:
        rank, what: whose, and which.
        begin, length: in microseconds.
        nbytes: of what was exchanged.
        parts: microseconds by part. Where exchanges have threads of their own, parts overlap and add up to more.
        spans: part, begin, length and what, for the picture.
        work: microseconds in which the rank's cores were at work, all its threads together, for anything but exchanges.
    """

    rank: int
    what: str
    begin: float
    length: float
    nbytes: int = 0
    parts: dict[str, float] = field(default_factory=dict)
    spans: list[tuple[str, float, float, str]] = field(default_factory=list)
    work: float = 0.0


def settled(steps: Sequence[Step]) -> Sequence[Step]:
    """All but the first steps, in which graphs are traced and memory is mapped."""
    return steps[min(3, len(steps) // 2) :]


def read(path: str) -> list[Step]:
    """The training steps of a timeline that a run with `--trace` wrote; the others where it did not train.

    Raises:
        DataError: it is not such a file.
    """
    try:
        events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is not a timeline: it should be what a run with --trace {path} wrote.") from None
    steps = []
    for rank in sorted({event["pid"] for event in spans}):
        own = sorted((event for event in spans if event["pid"] == rank), key=lambda event: event["ts"])
        steps += _steps(rank, own)
    if not steps:
        raise DataError(f"{path} has no step: did the script train?")
    return [step for step in steps if step.what.startswith("train")] or steps


def _steps(rank: int, spans: Sequence[dict[str, Any]]) -> list[Step]:
    steps = []
    inner = [span for span in spans if span["name"] != "step"]
    first = 0
    for outer in (span for span in spans if span["name"] == "step"):
        begin, end = outer["ts"], outer["ts"] + outer["dur"]
        while first < len(inner) and inner[first]["ts"] < begin:
            first += 1
        details = outer.get("args", {})
        step = Step(rank, details.get("what", ""), begin, outer["dur"], work=details.get("cpu", 0.0))
        held, last = 0.0, begin  # while TensorFlow's own ops waited for an exchange
        position = first
        while position < len(inner) and inner[position]["ts"] < end:
            span = inner[position]
            name, start, stop = span["name"], span["ts"], min(end, span["ts"] + span["dur"])
            if name == "op":
                held += max(0.0, stop - max(start, last))
                last = max(last, stop)
                step.spans.insert(0, ("other", start, stop - start, ""))
            elif name in EXCHANGE:
                step.parts[name] = step.parts.get(name, 0.0) + stop - start
                step.spans.append((name, start, stop - start, span.get("args", {}).get("what", "")))
            elif name == "exchange":
                found = re.search(r", (\d+) bytes$", span.get("args", {}).get("what", ""))
                step.nbytes += int(found[1]) if found else 0
                step.work -= span.get("tdur", 0.0)
            position += 1
        if last > begin:
            step.parts["apply"] = end - last
            step.spans.append(("apply", last, end - last, ""))
        step.work = max(0.0, step.work)
        step.parts["other"] = max(0.0, held - sum(step.parts.get(name, 0.0) for name in EXCHANGE))
        own = last - begin - held if last > begin else step.length - sum(step.parts.values())
        step.parts["compute"] = max(0.0, own)
        steps.append(step)
    return steps
