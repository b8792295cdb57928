"""Which groups train: those of the job, and those that have joined it (`matex-tf join`). One server keeps the roster.

The first rank of the job says when an epoch begins and when its parts are used up, and what a group has to have in
common with it; the first rank of a group that joins asks. What each says or asks is a method here, whose head has the
words of its arguments. Nobody is waited for longer than a limit: who waits gets `wait` for an answer, and asks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Answer = tuple[dict[str, Any], bytes]

#: Seconds after which whoever waits for the job is told to ask again.
PATIENCE = 5.0


@dataclass
class Guest:
    """A group that has joined.

    Attributes:
        ranks, host: how many it has, and where its first one is.
        settled: the last epoch of whose parts the center has everything.
    """

    ranks: int
    host: str
    settled: int = 0

    def __str__(self) -> str:
        return f"the group of {self.ranks} rank{'s' * (self.ranks > 1)} that has joined from {self.host}"


@dataclass
class Roster:
    """The groups of the training that is under way.

    Attributes:
        changed: what guards all of this, and is told of each change.
        log: prints a line for the user of the job.
        holds: whether a group has been given one of the first so many parts of an epoch; by training and epoch.
        training, epoch: counted by the job from 1; 0 before the first.
        groups: how many of its own the job has.
        count: how many parts each batch has in this epoch: as many as groups trained when it began.
        over: whether the training has ended.
        terms: what a group that joins has to have in common with the job, see `terms.Terms`.
        state: what a group gets that joins, or that begins an epoch, besides the center.
        clock: the steps of the slowest group in this epoch; a function, since servers know it.
    """

    changed: threading.Condition
    log: Callable[[str], None]
    holds: Callable[[str, str, int], bool]
    clock: Callable[[int], float]
    training: int = 0
    epoch: int = 0
    groups: int = 0
    count: int = 0
    over: bool = False
    terms: dict[str, Any] = field(default_factory=dict)
    state: bytes = b""
    guests: dict[str, Guest] = field(default_factory=dict)

    def answer(self, head: dict[str, Any], body: bytes) -> Answer:
        """Do what a message says, and answer it.

        Args:
            head: its words: `what`, which method, and those that the method reads.
            body: bytes; those of `state` where the job begins an epoch.
        """
        method: Callable[..., Answer] = getattr(self, f"_{head['what']}")
        return method(head, body)

    def left(self, name: str) -> None:
        """A group that had joined is gone."""
        guest = self.guests.pop(name, None)
        if guest is not None:
            self.changed.notify_all()
            if not self.over:
                self.log(f"{guest} has left: the others take its rows from the next epoch on")

    def _begin(self, head: dict[str, Any], body: bytes) -> Answer:
        """The job begins an epoch. May be said again: the answer is the same."""
        now = head["training"], head["epoch"]
        if now != (self.training, self.epoch):
            if head["training"] != self.training:
                self.guests.clear()
            self.training, self.epoch = now
            self.groups, self.terms, self.state, self.over = head["groups"], head["terms"], body, False
            self.count = self.groups + len(self.guests)
            self.changed.notify_all()
        return {"count": self.count}, b""

    def _used_up(self, head: dict[str, Any], body: bytes) -> Answer:
        """All parts of an epoch have been taken: wait for groups that have joined and are at one of theirs."""

        def late() -> list[str]:
            return [
                name
                for name, guest in self.guests.items()
                if guest.settled < head["epoch"] and self.holds(head["of"], name, head["parts"])
            ]

        self.changed.wait_for(lambda: not late(), head["limit"])
        for name in late():
            guest = self.guests.pop(name)
            self.log(f"{guest} has not ended its part of a batch after {head['limit']} s: the job continues without it")
        return {}, b""

    def _end(self, head: dict[str, Any], body: bytes) -> Answer:
        """The training of the job has ended."""
        if head["training"] == self.training:
            self.over = True
            self.guests.clear()
            self.changed.notify_all()
        return {}, b""

    def _where(self, head: dict[str, Any], body: bytes) -> Answer:
        """Which training is under way, and in which epoch; waits for the one that a group has come to."""
        self.changed.wait_for(lambda: self.training >= head["training"], PATIENCE)
        over = self.training > head["training"] or (self.training == head["training"] and self.over)
        return {"training": self.training, "epoch": self.epoch, "over": over}, b""

    def _join(self, head: dict[str, Any], body: bytes) -> Answer:
        """A group wants to train too."""
        self.changed.wait_for(lambda: self.training >= head["training"], PATIENCE)
        if self.training < head["training"]:
            return {"wait": True}, b""
        if self.training > head["training"] or self.over:
            return {"over": True}, b""
        guest = Guest(head["ranks"], head["host"])
        if why := refusal(self.terms, head["terms"]):
            self.log(f"a group on {guest.host} wanted to join and was refused: {why}")
            return {"refused": why}, b""
        if head["client"] not in self.guests:
            self.log(
                f"a group of {guest.ranks} rank{'s' * (guest.ranks > 1)} on {guest.host} has joined: rows are divided "
                f"among {self.groups + len(self.guests) + 1} groups from the next epoch on"
            )
        self.guests[head["client"]] = guest
        return self._now()

    def _next(self, head: dict[str, Any], body: bytes) -> Answer:
        """A group that has joined begins an epoch, once the job does."""

        def begun() -> bool:
            return self.over or self.training != head["training"] or self.epoch >= head["epoch"]

        self.changed.wait_for(begun, PATIENCE)
        if not begun():
            return {"wait": True}, b""
        if self.over or self.training != head["training"]:
            return {"over": True}, b""
        return self._now() if head["client"] in self.guests else ({"unknown": True}, b"")

    def _settled(self, head: dict[str, Any], body: bytes) -> Answer:
        """The center has all of a group's parts of an epoch."""
        if head["client"] in self.guests:
            self.guests[head["client"]].settled = head["epoch"]
            self.changed.notify_all()
        return {}, b""

    def _now(self) -> Answer:
        clock = self.clock(self.training)
        return {"epoch": self.epoch, "count": self.count, "clock": clock if np.isfinite(clock) else 0}, self.state


def refusal(job: dict[str, Any], other: dict[str, Any]) -> str:
    """Why a group cannot join, in words; empty where it can.

    Args:
        job, other: what each runs, see `terms.of`.
    """
    if job["version"] != other["version"]:
        return f"it has matex_tf {other['version']}, and the job {job['version']}: install the same"
    for name, value in job["settings"].items():
        theirs = other["settings"].get(name, "")
        if theirs != value:
            return f"its {name} is {theirs or 'not there'}, and that of the job is {value}: give it the same"
    if job["script"] != other["script"]:
        return f"it runs {other['script']}, and the job {job['script']}: run the same script"
    if job["arguments"] != other["arguments"]:
        return (
            f"its script has the arguments {' '.join(other['arguments']) or '(none)'}, and that of the job "
            f"{' '.join(job['arguments']) or '(none)'}: give it the same"
        )
    weights, theirs = job["weights"], other["weights"]
    if len(weights) != len(theirs):
        return f"its model has {len(theirs)} weights, and that of the job {len(weights)}"
    for mine, own in zip(weights, theirs, strict=True):
        if mine != own:
            return f"its model has the weight {own} where that of the job has {mine}"
    return ""
