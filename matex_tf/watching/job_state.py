"""What is known of a running job: the last counts of each rank, how fast it is, and what has happened to ranks."""

from __future__ import annotations

import collections
import dataclasses
import statistics
import time
from typing import Any

#: Seconds over which speeds and shares are taken.
WINDOW = 10.0
#: A rank is a straggler where it waits less than this part of what ranks wait in the median, and they wait much.
_LITTLE, _MUCH = 0.3, 0.1
_MOST_EVENTS = 100
#: A speed is known after so many steps that were not traced, and so many seconds of them.
_STEPS, _SECONDS = 3, 3.0

RUNS, ENDED, DIED = "runs", "ended", "died"


@dataclasses.dataclass
class RankState:
    """A rank, as it has reported.

    Attributes:
        last: its last counts, see `Meter.snapshot`.
        status: one of `RUNS`, `ENDED` and `DIED`.
        history: its counts in the last seconds, the oldest first.
        moves: those of them in which it had come to another step, back to as many steps as a speed takes.
    """

    last: dict[str, Any] = dataclasses.field(default_factory=dict)
    status: str = RUNS
    history: collections.deque[dict[str, Any]] = dataclasses.field(default_factory=collections.deque)
    moves: collections.deque[dict[str, Any]] = dataclasses.field(default_factory=collections.deque)

    def heard(self, counts: dict[str, Any]) -> None:
        """Take new counts."""
        self.last = counts
        self.history.append(counts)
        while len(self.history) > 2 and self.history[1]["time"] < counts["time"] - WINDOW:
            self.history.popleft()
        if counts["epoch"] <= 1 and counts["in_epoch"] == 0:  # what comes before the first step does not come again
            self.moves.clear()
        elif not self.moves or counts["step"] != self.moves[-1]["step"]:
            self.moves.append(counts)
        while len(self.moves) > _STEPS + 1 and self.moves[1]["time"] < counts["time"] - WINDOW:
            self.moves.popleft()

    def rate(self, name: str) -> float:
        """How much a count has grown a second; 0 where that is not known."""
        if len(self.history) < 2:
            return 0.0
        first, last = self.history[0], self.history[-1]
        spent = last["time"] - first["time"]
        return float(max(0.0, (last[name] - first[name]) / spent)) if spent > 0 else 0.0

    def step_seconds(self) -> float:
        """Seconds from a step of this `fit` to the next; 0 as long as they are not known, or if none ends any more.

        Steps that were traced are left out: they do not come again.
        """
        steps, seconds = self._moved("step", "traced_steps"), self._moved("time", "traced")
        if steps < _STEPS or seconds < _SECONDS:
            return 0.0
        stands = self.last["time"] - self.moves[-1]["time"]
        return seconds / steps if stands <= max(WINDOW, _STEPS * seconds / steps) else 0.0

    def _moved(self, name: str, without: str = "") -> float:
        """How much a count has grown over the moves, without another one."""
        names = [name, without] if without else [name]
        grown = [self.moves[-1][one] - self.moves[0][one] for one in names] if self.moves else [0.0]
        return float(grown[0] - sum(grown[1:]))

    def rows_of_a_step(self) -> float:
        """Rows of a batch, in the mean; 0 if not known."""
        steps = self._moved("step")
        return self._moved("rows") / steps if steps else 0.0

    def share(self, name: str) -> float:
        """The part of the time that went into `input`, `exchange` or `wait`. Outside of steps ranks wait too."""
        spent = max(self.rate("exchange"), self.rate("wait")) if name == "exchange" else self.rate(name)
        return min(1.0, spent)


class JobState:
    """A job, as its ranks have reported.

    Attributes:
        script, size, started: what it runs, on how many ranks, and since when, in seconds since 1970.
        ranks: by the number that each had at the start.
        events: what has happened to ranks, the oldest first: seconds since 1970, and a sentence.
    """

    def __init__(self, script: str, size: int, started: float):
        self.script, self.size, self.started = script, size, started
        self.ranks: dict[int, RankState] = {}
        self.events: collections.deque[tuple[float, str]] = collections.deque(maxlen=_MOST_EVENTS)
        self._generation = 0

    def heard(self, counts: dict[str, Any]) -> None:
        """A rank has reported."""
        rank = self.ranks.setdefault(counts["rank"], RankState())
        rank.status = RUNS
        rank.heard(counts)
        if counts["generation"] > self._generation:
            self._generation = counts["generation"]
            size = counts["size"]
            self._say(f"the others continue: {size} rank{'s' * (size > 1)}")

    def left(self, number: int, ended: bool, host: str) -> None:
        """A rank reports no more.

        Args:
            ended: whether it has said so; else its connection has broken off, or the others have left it behind.
            host: where it was.
        """
        rank = self.ranks.setdefault(number, RankState({"rank": number, "host": host}))
        if rank.status != RUNS:
            return
        rank.status = ENDED if ended else DIED
        if not ended:
            self._say(f"rank {number} on {host} died, or cannot be reached")

    def _say(self, what: str) -> None:
        self.events.append((time.time(), what))

    def public(self) -> dict[str, Any]:
        """All of it in plain values, for those that show it."""
        alive = [rank for rank in self.ranks.values() if rank.status == RUNS]
        waiting = statistics.median(rank.rate("wait") for rank in alive) if alive else 0.0
        ranks = []
        for number, rank in sorted(self.ranks.items()):
            shares = {name: rank.share(name) for name in ("input", "exchange", "wait")}
            slow = rank.status == RUNS and waiting > _MUCH and shares["wait"] < _LITTLE * waiting
            values = {**rank.last, "rank": number, "status": rank.status, "straggler": slow}
            # Of `input`, `exchange` and `wait` the part of the time; of `cpu` how many cores were busy.
            ranks.append({**values, **shares, "cpu": rank.rate("cpu"), "steps_per_second": rank.rate("step")})
        return {
            "script": self.script,
            "size": self.size,
            "alive": len(alive),
            "started": self.started,
            "ranks": ranks,
            "events": [list(event) for event in self.events],
            **self.summary(),
        }

    def summary(self) -> dict[str, Any]:
        """What a person asks: epoch, speed, where time goes, and how long it takes; None where that is not known."""
        alive = [rank for rank in self.ranks.values() if rank.status == RUNS]
        first = min(alive, key=lambda rank: rank.last["rank"], default=RankState())
        counts = first.last
        seconds = first.step_seconds()
        left = None
        if seconds > 0 and counts["epochs"] and counts["of_epoch"]:
            steps = counts["epochs"] * counts["of_epoch"]
            left = max(0, steps - (counts["epoch"] - 1) * counts["of_epoch"] - counts["in_epoch"]) * seconds
        return {
            **{name: counts.get(name, 0) for name in ("epoch", "epochs", "in_epoch", "of_epoch", "step", "rows")},
            "phase": counts.get("phase", ""),
            # Of steps that are not traced; 0 as long as it is not known.
            "steps_per_second": 1 / seconds if seconds else 0.0,
            "rows_per_second": first.rows_of_a_step() / seconds if seconds else 0.0,
            # Exchanges are waited for by all alike; the rank that waits longest for input holds up the others.
            "exchange": statistics.fmean(rank.share("exchange") for rank in alive) if alive else 0.0,
            "input": max((rank.share("input") for rank in alive), default=0.0),
            "seconds_left": left,
        }
