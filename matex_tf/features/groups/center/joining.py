"""A group that joins a running job (`matex-tf join`): where the job's center is, and the group's part in it.

The group is an MPI job of its own, of one group. All that it has to do with the other job goes over connections to the
servers of the center: its ranks meet it as those of other groups do, and its first rank asks the roster. MPI's own
connect and accept would need both jobs under one runtime (Open MPI 5: a PRRTE DVM), and an error of one would be an
error of both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from matex_tf.core.world import World
from matex_tf.errors import MatexError, SettingError
from matex_tf.features.groups.center import terms
from matex_tf.features.groups.center.client import Client, Dealer, Lines, Servers
from matex_tf.features.groups.center.member import Center, Member

_Answer = TypeVar("_Answer")
_GONE = "the job that this group has joined has ended, or cannot be reached any more."


class JobGone(MatexError):
    """The job that was joined has ended, or cannot be reached."""


class Visit(Center):
    """The center of a job that this world has joined.

    Attributes:
        epoch: of the job's training, when the `fit` that is under way here began.
    """

    def __init__(self, servers: Servers, world: World):
        super().__init__(servers, None)
        self._roster = Lines(servers)
        self._world = world
        self.name: str = world.broadcast(f"joined.{world.host}.{os.getpid()}", "name the group that joins")
        self.epoch = 0

    def close(self) -> None:
        self._roster.close()

    @property
    def is_gone(self) -> bool:
        """Whether this rank has found that no server of the job is left."""
        return len(self.servers.dead) == len(self.servers.addresses)

    def ask(self, what: str, **words: Any) -> tuple[dict[str, Any], bytes]:
        """Ask the roster, until it has an answer. Collective: the first rank asks, and all get the answer.

        Raises:
            JobGone: the job does not answer; on every rank.
        """
        answer: tuple[dict[str, Any], bytes] | None = None
        if self._world.rank == 0:
            answer = self._ask({"ask": "roster", "what": what, "client": self.name, **words})
        answer = self._world.broadcast(answer, f"ask the job that was joined ({what})")
        if answer is None:
            raise JobGone(_GONE)
        return answer

    def _ask(self, head: dict[str, Any]) -> tuple[dict[str, Any], bytes] | None:
        while True:
            try:
                answer = self._roster.answer(self._roster.send(0, head, b""))
            except MatexError:  # no server is left
                return None
            if answer is not None and not answer[0].get("wait"):
                return answer


def begin(world: World, path: str) -> Visit:
    """Let the center of this world be that of a running job. Collective.

    Args:
        path: the job file.

    Raises:
        SettingError: it cannot be read, or the job has no center.
        MatexError: nothing can be reached there, or the token is another one.
    """
    found: dict[str, Any] | str = ""
    if world.rank == 0:
        try:
            found = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            found = f"the job file {path} cannot be read: {error}."
    found = world.broadcast(found, "read the job file")
    if isinstance(found, str):
        raise SettingError(found)
    center = found.get("center")
    if not center:
        raise SettingError(f"the job of {path} has no center that a group could join.")
    servers = Servers([(host, port) for host, port in center["addresses"]], bytes.fromhex(center["token"]))
    visit = world.center = Visit(servers, world)
    reached = world.allgather(_reach(servers), "reach the servers of the center")
    if failures := [one for one in reached if one]:
        raise MatexError(failures[0])
    return visit


def _reach(servers: Servers) -> str:
    """Why a server cannot be reached; empty where all that live can be."""
    from matex_tf.features.groups.center import wire

    failures = []
    for server, (host, port) in enumerate(servers.addresses):
        try:
            wire.connect((host, port), servers.token).close()
        except AuthenticationError:
            return f"the server of the job on {host}:{port} does not know the token of the job file: is it of this job?"
        except (OSError, EOFError) as error:
            servers.dead.add(server)
            failures.append(f"{host}:{port} ({error})")
    if len(failures) < len(servers.addresses):
        return ""
    return (
        f"no server of the job can be reached: {', '.join(failures)}. If it runs on another host, start it with "
        "--center-network, so that it listens on a network that both have; if it has ended there is nothing to join."
    )


class Visitor(Member):
    """What a rank of a group that joins does with the center in one training, which it joins as it is made: it takes
    the center. Where the job refuses the group that is a MatexError, in words."""

    _visit: Visit

    def _enter(self, center: Center, codec: str) -> None:
        assert isinstance(center, Visit)
        self._visit, self._lines = center, Lines(center.servers)
        self._join()
        self.epochs = center.epoch - 1  # `begin_epoch` comes next
        name = f"{center.name}.{self._world.rank}"
        known = Client(center.servers, center.trainings, name, self.values(), self._part, offers=False)
        values = self.gather(known.pull().copy())
        known.close()
        self.assign(values)
        self.client = Client(center.servers, center.trainings, name, values, self._part, codec, clock=np.inf)
        self._dealer = Dealer(center.servers, center.trainings, center.name)

    def _join(self) -> None:
        ranks, known = self._world, terms.of(self._settings, self._variables)
        answer, _ = self._visit.ask(
            "join", training=self._visit.trainings, terms=known, ranks=ranks.size, host=ranks.host
        )
        if "refused" in answer:
            raise MatexError(f"the job refuses this group: {answer['refused']}.")
        if answer.get("over"):
            raise MatexError("the training that this group has come to is over in the job: only a fit can be joined.")

    def _open_epoch(self) -> None:
        while True:
            answer, state = self._visit.ask("next", training=self._visit.trainings, epoch=self.epochs)
            if not answer.get("unknown"):
                break
            self._join()  # another server keeps the roster by now
        if answer.get("over"):
            return
        self.count = answer["count"]
        self.ahead = max(0, int(answer["clock"]) - self.epochs * self.EPOCH)
        values = np.frombuffer(state, np.float64)
        first = 0
        for variable in self._state:
            held = np.asarray(variable.numpy())
            variable.assign(values[first : first + held.size].reshape(held.shape).astype(held.dtype))
            first += held.size

    def end_epoch(self, batches: int) -> None:
        self._world.on_wait()  # no group of the job shall wait for the next step of this one
        self._visit.ask("settled", epoch=self.epochs)

    def goes_on(self) -> bool:
        answer, _ = self._visit.ask("next", training=self._visit.trainings, epoch=self.epochs + 1)
        return not answer.get("over")

    def answer_of(self, call: Callable[[], _Answer]) -> _Answer:
        """What this rank gets from the servers. Collective: the job may end between the questions of two ranks.

        Raises:
            JobGone: a rank has found no server; on every rank.
            MatexError: a rank has got an error instead; on every rank.
        """
        answer, failure = None, ""
        try:
            answer = call()
        except MatexError as error:
            failure = _GONE if self._visit.is_gone else str(error)
        failures = self._world.allgather(failure, "agree whether the job is there")
        if errors := [one for one in failures if one not in ("", _GONE)]:
            raise MatexError(errors[0])
        if _GONE in failures:
            raise JobGone(_GONE)
        return cast(_Answer, answer)

    def hide(self, own: bool = True) -> None:
        """The group's weights again, or the center; where the script has set others, those do not count here."""
        shown, self.shown = self.shown, None
        if shown is not None and own and self._own is not None:
            self.assign(self._own)
        elif shown is not None:
            self.assign(shown)

    def end(self) -> None:
        """It ends for this group alone."""
