"""A rank died: the others leave it behind and carry on (arXiv 1709.03316, with ULFM).

What the ranks do together is cut into transactions: one collective outside of steps, one batch inside of them. All
survivors complete a transaction, or none does and they run it again. No message is spent on that while nothing fails:

- A transaction ends in a collective in which every rank waits for every other. So a rank that has completed it knows
  that all others have done their own part of it, and no two ranks are more than one transaction apart.
- What comes after that collective in a transaction is the rank's own work, which cannot fail with another rank.
- Whoever meets a failure revokes the communicators, which brings every other rank here as well, at its next collective
  at the latest. The survivors shrink and tell each other how many transactions they have completed. Where they differ,
  those that are late are given the result of the last one, the same on all ranks, and have completed it too.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from matex_tf import errors
from matex_tf.core import namespaces, sign, trace
from matex_tf.core.mismatch import name_ranks
from matex_tf.core.output import Output
from matex_tf.core.sign import ENDS_WITHOUT
from matex_tf.core.world import World
from matex_tf.errors import CommunicationError, MatexError, RankLost
from matex_tf.faults import liveness
from matex_tf.faults.peer_sockets import PeerSocket
from matex_tf.settings import Settings

#: Recoveries in a row that found nobody dead, after which an error of MPI is taken for one.
_VAIN = 3
#: Seconds that a rank with an error waits for those of other hosts to hear of it.
_LAST_WORDS_SECONDS = 3.0

_Result = TypeVar("_Result")
_Committed = TypeVar("_Committed")


class TransactionGuard:
    """Carries a world on when ranks die.

    Attributes:
        on_change: called with the former ranks of the survivors once ranks have been left behind.
        shares_batches: whether the survivors take over the rows of the dead, which is said where a rank dies.
    """

    def __init__(self, world: World, notes: bool = True, least: int = 1):
        """Args: notes: whether to print what happened. least: ranks without which the job ends."""
        self._world = world
        self._notes = notes
        self._least = least
        self.shares_batches = True
        self._completed = 0
        self._last: Any = None
        self._inside = False
        self._counted = False  # the transaction that is under way
        self._vain = 0
        self.on_change: list[Callable[[list[int]], None]] = []
        self._processes = world.allgather(namespaces.process(), "prepare to carry on")
        self._reach = liveness.LivenessProbe(world) if len(world.nodes) > 1 else None
        self._former: list[liveness.LivenessProbe | None] = []
        self._left_behind: list[PeerSocket | None] = []  # to ranks of other hosts
        self._came = world.arrival is not None
        world.guard = self
        if world.rank == 0:
            sign.up()
        atexit.register(namespaces.here_alone(self._leave))  # what the script has registered runs before

    def run(self, operation: Callable[[], _Result]) -> _Result:
        """Run one or more collectives such that all survivors complete them or none does.

        Args:
            operation: ends in a collective in which every rank waits for every other; its result is the same on every
                rank. Run again where a rank died in it. Inside another transaction it is a part of that.
        """
        return self.transaction(lambda: None, operation)[1]

    def transaction(
        self,
        prepare: Callable[[], _Result],
        commit: Callable[[], _Committed],
        undo: Callable[[], None] = lambda: None,
        catch_up: Callable[[_Committed], _Result] | None = None,
    ) -> tuple[_Result, _Committed]:
        """Run what a rank does for itself, and the collective that makes it count, on all survivors or on none.

        Args:
            prepare: the rank's own part; may have collectives in it. It may call `mark_committed` after the last of
                them, and what it does from there on is its own work.
            commit: a collective in which every rank waits for every other, with the same result on every rank; where
                `prepare` has counted the transaction it only gives that result.
            undo: called before `prepare` is run again.
            catch_up: given another rank's result of `commit`, where that rank has counted the transaction and this one
                has met a failure instead: does what `prepare` has not come to, and gives its result.
        """
        if self._inside:
            return prepare(), commit()
        while True:
            self._inside, self._counted = True, False
            prepared = False
            try:
                result = prepare()
                prepared = True
                committed = commit()
            except Exception as error:
                if not is_rank_failure(error) or self._vain > _VAIN or self._counted:
                    raise
                settled, committed = self._recover()
                if not settled:
                    undo()
                    continue
                if not prepared and catch_up is not None:
                    result = catch_up(committed)
            finally:
                self._inside = False
            if not self._counted:
                self._completed += 1
            self._last = committed
            self._vain = 0
            return result, committed

    def extend(self, bridge: Any, leader: int = 0) -> bool:
        """Let a rank come, or come to others; whether it has. Every rank of both worlds must call, in no transaction.

        Args:
            bridge, leader: see `Communicator.extend`.
        """
        world = self._world
        try:
            said = world.extend(bridge, (self._completed, namespaces.process()), leader)
        except CommunicationError:
            if world.arrival is None:
                self._recover()  # the others wait there, or will
            return False
        self._completed, self._last, self._vain = max(count for count, _ in said), None, 0
        self._processes = [process for _, process in said]
        self._former.append(self._reach)  # whose lines must not be closed
        self._reach = liveness.LivenessProbe(world) if len(world.nodes) > 1 else None
        if self._reach is not None:
            self._reach.notice_silence([first >= world.founders for first in world.first_ranks], world.rank)
        return True

    def let_go(self, leaving: Sequence[int]) -> None:
        """Go on without ranks that leave of their own will, between two transactions. All ranks must call.

        Args:
            leaving: by their first numbers: a rank may have been late in hearing of it, and have gone on without them.
        """
        world = self._world
        if world.first_ranks[world.rank] in leaving:
            Output.flush()
            os.kill(os.getpid(), signal.SIGKILL)  # an exit code would end the job
        while set(leaving).intersection(world.first_ranks):
            self._recover("left, as it was told to (SIGTERM)")

    def leave_guests(self, everyone: Sequence[Any], why: str) -> None:
        """Leave ranks behind that have come and differ from all that began the job. All ranks must call.

        Args:
            everyone: what each rank has said; nothing happens where those that began the job differ themselves.
            why: in words.

        Raises:
            RankLost: ranks are left behind, and the transaction is to be run again.
        """
        guests = self._world.guests
        others = [said for rank, said in enumerate(everyone) if rank not in guests]
        apart = [rank for rank in guests if everyone[rank] != others[0]]
        if not apart or any(said != others[0] for said in others):
            return
        if self._world.rank in apart:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._world.growth is not None:
            self._world.growth.left_because = why
        if self._world.rank == 0:
            self._world.log(f"{name_ranks(apart)}, which joined while the job ran, must leave: {why}")
        for rank in apart:
            kill(self._processes[rank])
        raise RankLost(why)

    @property
    def inside(self) -> bool:
        """Whether a transaction is under way."""
        return self._inside

    def mark_committed(self) -> None:
        """In a transaction, after its last collective, in which every rank has waited for every other: it counts."""
        self._counted = True
        self._completed += 1
        self._last = None

    def _leave(self) -> None:
        """Leave without MPI_Finalize where ranks have died: it may wait for them. So may mpirun, for those that are
        out of reach."""
        if self._world.generation or self._world.exit_may_hang or self._world.growth is not None:
            Output.flush()
            missing = sum(liveness.alive(self._left_behind)) if self._world.rank == 0 else 0
            if missing:
                ranks = f"{missing} rank{'s' * (missing > 1)}"
                lost = f"{ranks} that cannot be reached: end what still runs there"
                print(f"{ENDS_WITHOUT}{lost}", file=sys.stderr, flush=True)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Open MPI complains of ranks that have left before
            self._world.leave_together()
            sign.give()
            if self._came:
                os.kill(os.getpid(), signal.SIGKILL)  # who was not there from the start ends all if it exits
            os._exit(0)

    def end(self, code: int) -> None:
        """End all ranks at once: this one has an error that is none of MPI's. MPI_Abort would end this rank alone."""
        world = self._world
        if world.rank in world.guests:
            world.log(f"rank {world.rank}, which came while the job ran, leaves it: the others continue")
            Output.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if len(world.nodes) > 1:
            # The ranks of other hosts hear of it where they are about to shrink; who does not come is not waited for.
            telling = threading.Thread(target=self._tell, args=(code,), daemon=True)
            telling.start()
            telling.join(_LAST_WORDS_SECONDS)
        self._end_host()
        if len(world.nodes) == 1:
            os._exit(code)  # what mpirun then ends with; after an MPI_Abort it has been seen to end with 0

    def _tell(self, code: int) -> None:
        with contextlib.suppress(Exception):
            self._world.shrink(-1 - code, lambda said: None, None)

    def _end_host(self) -> None:
        for process in self._processes:
            kill(process)

    def _part_from(self, dead: list[int], survivors: list[int], hosts: list[str]) -> None:
        """See to it that ranks which count as dead are so, or that this part of the job ends and not theirs.

        Args:
            dead, survivors, hosts: by the numbers that ranks had before.
        """
        here = self._world.host
        for rank in dead:
            if hosts[rank] == here:  # stopped, perhaps
                kill(self._processes[rank])
        if self._reach is None or not dead:
            return
        dead_away = away = [rank for rank in dead if hosts[rank] != here]
        lines = self._reach.lines(away)
        if away and not liveness.wins_split(survivors, away):
            away = [rank for rank, alive in zip(away, liveness.alive(lines), strict=True) if alive]
            if away and not liveness.wins_split(survivors, away):
                print(
                    f"matex_tf: {name_ranks(survivors)} of {len(hosts)} on {here} cannot reach {name_ranks(away)}, "
                    "which may train on without them: this part of the job ends",
                    file=sys.stderr,
                    flush=True,
                )
                self._reach.take_back()
                os.kill(os.getpid(), signal.SIGKILL)  # an exit code would end the job once mpirun hears of it
        left = {hosts[rank] for rank in survivors}
        silent = [self._reach.addresses(rank) for rank in dead_away if hosts[rank] not in left]
        self._reach.stop_listening(itertools.chain(*silent))
        self._left_behind += lines
        self._reach.keep(survivors)

    def _recover(self, how: str = "died") -> tuple[bool, Any]:
        """Go on with the survivors; whether the transaction counts as completed, and then its result.

        Args:
            how: those that are missing went, in words.
        """
        world = self._world
        begin = time.perf_counter()
        before, hosts, where = world.size, world.hosts, world.location

        def newest(said: list[int]) -> int | None:
            return said.index(max(said)) if len(set(said)) > 1 and min(said) >= 0 else None

        with trace.span("recover"):
            survivors, said, value = world.shrink(self._completed, newest, self._last)
        if min(said) < 0:  # another rank has an error, has reported it, and ends the job
            self._end_host()
            world.abort(-1 - min(said))
        self._part_from([rank for rank in range(before) if rank not in survivors], survivors, hosts)
        self._processes = [self._processes[rank] for rank in survivors]
        self._vain = self._vain + 1 if len(survivors) == before else 0
        for change in self.on_change:
            change(survivors)
        if self._notes and world.rank == 0 and len(survivors) < before:
            dead = [rank for rank in range(before) if rank not in survivors]
            places = ", ".join(sorted({hosts[rank] for rank in dead}))
            left, part = f"{world.size} ranks continue", f"each with 1/{world.size} of a batch instead of 1/{before}"
            if world.size == 1:
                left, part = "1 rank continues", "with whole batches"
            lines = (
                f"{name_ranks(dead)} of {before} on {places} {how}{' in ' + where if where else ''}",
                f"{left}, {part}" if self.shares_batches else left,
                f"recovered in {time.perf_counter() - begin:.2f} s",
            )
            print("\n".join(f"matex_tf: {line}" for line in lines), file=sys.stderr, flush=True)
        if world.size < self._least:
            raise MatexError(f"--min-ranks asks for {self._least} ranks, and {world.size} of {before} are left.")
        return max(said) > self._completed, value


def kill(process: tuple[str, int, int]) -> None:
    """Kill a rank, where its number means it here. Args: process: see `namespaces.process`."""
    mine = namespaces.process()
    if process[:2] == mine[:2] and process != mine:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process[2], signal.SIGKILL)


def is_rank_failure(error: BaseException) -> bool:
    """Whether an error may mean that a rank has died. A transport does not always say it in so many words."""
    return isinstance(error, (RankLost, CommunicationError))


def comes_from_a_death(error: BaseException) -> bool:
    """Whether this rank has an error because another one has died, be it in TensorFlow's wrapping."""
    seen: BaseException | None = error
    while seen is not None:
        if is_rank_failure(seen):
            return True
        seen = seen.__cause__
    return type(error).__module__.startswith("tensorflow") and (
        (last := errors.remembered()) is not None and is_rank_failure(last)
    )


def install(world: World, settings: Settings) -> TransactionGuard | None:
    """Carry on when ranks die, where that is wanted and can be had.

    Args:
        settings: `faults`, `min_ranks` and `notes` of them.

    Raises:
        MatexError: it is wanted, and this MPI job cannot do it.
    """
    if settings.faults != "shrink" or (world.is_single and world.arrival is None):
        return None
    if not world.can_shrink:
        raise MatexError(
            "--faults shrink needs an MPI with ULFM that was started for it: matex-tf run does that with Open MPI 5 "
            "(mpirun --with-ft ulfm by hand), or take --faults abort."
        )
    return TransactionGuard(world, settings.notes, settings.min_ranks)
