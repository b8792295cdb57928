"""A call that changes files, or starts a program, done by one rank while the others wait for what comes of it.

The ranks meet before it and after it. Before it, so that nothing changes while a rank still has to read what was there:
a script that lists a folder, opens each file and removes some would miss files otherwise, and one that looks whether a
file exists would find the one that comes later. So to whatever a script asks of its files between two such calls all
ranks get the same answer, as one rank would, and take the same way. After it, so that what was written can be read.

The other way, where the first rank that comes to a call does it and leaves the result to those that come later, needs
no meeting and cannot hang, but removes what a slower rank still reads: the first of these examples fails with it.

The meeting is `World.barrier_at`, from which ranks that go different ways come back: a rank that is alone at a call
does it by itself, as without this patch, and says so; those that wait elsewhere, in a training step or in another call,
wait there again. Calls are matched by place in the script and by arguments. That they come in the same order is checked
by the meeting itself, so nobody counts them: counts would differ for ever once one rank has made a call by itself.

Who does it is the first of the ranks that share the file system (`systems`). If it dies the next one does it again.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matex_tf import settings
from matex_tf.core import world
from matex_tf.core.mismatch import checksum, name_ranks
from matex_tf.core.world import CALL
from matex_tf.errors import MatexError
from matex_tf.patches.common import active_flag, carried_error
from matex_tf.patches.files import systems
from matex_tf.state import notes, run_state

_LONGEST = 200  # characters of an argument that are shown and compared; of more, a checksum


@dataclass(frozen=True)
class Call(notes.Inside):
    """One call of the script's: a note on a file that it has opened.

    Attributes:
        name: such as "os.remove".
        where: such as "train.py:12".
        details: the arguments, in words.
        folder: a path on the file system that it changes.
    """

    name: str
    where: str
    details: tuple[str, ...]
    folder: str = "."

    @property
    def what(self) -> str:
        """The purpose for which ranks meet."""
        return f"{self.name} at {self.where}"


class Apart(Exception):
    """Another rank is elsewhere; this one is on its own."""


@dataclass
class _Outcome:
    """What came of a call, as bytes of pickle that any rank can read."""

    value: bytes = b""
    error: bytes = b""


class _Said(set[str]):
    """Of a run: the calls that this rank has done for itself, in words."""


def do(
    call: Call,
    act: Callable[[], Any],
    tell: Callable[[Any], Any] = lambda result: result,
    elsewhere: Callable[[Any], Any] = lambda sent: sent,
    alone: Callable[[], Any] | None = None,
    done_before: tuple[type[Exception], ...] = (),
) -> Any:
    """Do it on one rank of each file system; see `attempt`."""
    return attempt(call, act, tell, elsewhere, alone, done_before)[0]


def attempt(
    call: Call,
    act: Callable[[], Any],
    tell: Callable[[Any], Any] = lambda result: result,
    elsewhere: Callable[[Any], Any] = lambda sent: sent,
    alone: Callable[[], Any] | None = None,
    done_before: tuple[type[Exception], ...] = (),
) -> tuple[Any, bool]:
    """Do it on one rank of each file system.

    Args:
        act: what is to be done.
        tell: from what `act` returns to what the other ranks get of it, any picklable object.
        elsewhere: from that to what the call returns on the other ranks.
        alone: done instead of `act` by a rank that is on its own; `act` where it is None.
        done_before: what `act` raises where a rank that has died had done it.

    Returns:
        What `act`, `elsewhere` or `alone` returned; and whether the ranks have come together.

    Raises:
        Exception: whatever `act` raised, on every rank that shares the file system.
    """
    ranks = world.current()
    mine: _Outcome | None = None
    result: Any = None
    failure: Exception | None = None
    first_generation, where = ranks.generation, ranks.location

    def meet() -> tuple[list[int], list[_Outcome | None]]:
        nonlocal mine, result, failure
        _come_together(call)
        doers = systems.doers(ranks, call.folder)
        if mine is None and doers[ranks.rank] == ranks.rank:
            try:
                with active_flag.alone():
                    result = act()
                    mine = _Outcome(_pack(tell(result), call))
            except Exception as error:
                if ranks.generation > first_generation and isinstance(error, done_before):
                    mine = _Outcome(_pack(None, call))
                else:
                    failure = error
                    mine = _Outcome(error=carried_error.pack(error))
        if len(set(doers)) == 1:
            return doers, [ranks.broadcast(mine, f"end of {call.what}", doers[0])]
        return doers, ranks.allgather(mine, f"end of {call.what}")

    try:
        ranks.location = call.what
        doers, outcomes = ranks.run_atomically(meet)
    except Apart:
        with active_flag.alone():
            return (alone or act)(), False
    finally:
        ranks.location = where
    if failure is not None:
        raise failure
    if mine is not None:
        return result, True
    outcome = outcomes[0] if len(outcomes) == 1 else outcomes[doers[ranks.rank]]
    if outcome is None:
        raise MatexError(f"nothing is known of {call.what}; this is an error of matex_tf.")
    if outcome.error:
        raise carried_error.unpack(outcome.error)
    with active_flag.alone():
        return elsewhere(pickle.loads(outcome.value)), True


def together(call: Call) -> bool:
    """Wait until all ranks have come to a call; whether they have. Nobody does anything."""
    ranks = world.current()
    try:
        ranks.run_atomically(lambda: _come_together(call))
    except Apart:
        return False
    return True


def _come_together(call: Call) -> None:
    """Meet the other ranks at a call.

    Raises:
        Apart: some are elsewhere, and this rank is not to wait for them.
    """
    ranks = world.current()
    while (everyone := ranks.barrier_at(call.what, call.details)) is not None:
        if all(doing == CALL + call.what for doing, _, _ in everyone) and _alike(ranks, everyone, call):
            return
        lines = [_line(doing) for doing, _, _ in everyone]
        earliest = min(number for file, number in lines if file)
        in_one_file = len({file for file, _ in lines if file}) == 1
        # Who is at an earlier line has most likely taken a branch that the others have not: they wait.
        waiting = [in_one_file and bool(file) and number > earliest for file, number in lines]
        if waiting[ranks.rank]:
            continue
        _say(ranks, everyone, waiting)
        raise Apart


def _alike(ranks: world.World, everyone: Sequence[tuple[str, tuple[str, ...], str]], call: Call) -> bool:
    """Whether the ranks of each file system give the same arguments: those of others may have other files."""
    doers = systems.doers(ranks, call.folder)
    return all(details == everyone[doer][1] for (_, details, _), doer in zip(everyone, doers, strict=True))


def _line(doing: str) -> tuple[str, int]:
    """The file and the line of a call; "" and 0 of everything else that a rank may be about to do."""
    if not doing.startswith(CALL):
        return "", 0
    file, _, line = doing.rpartition(" at ")[2].rpartition(":")
    return file, int(line)


def _say(ranks: world.World, everyone: Sequence[tuple[str, tuple[str, ...], str]], waiting: Sequence[bool]) -> None:
    """The line, from the first rank that does such a call by itself, once for each place in the script."""
    callers = [rank for rank, (doing, _, _) in enumerate(everyone) if doing.startswith(CALL) and not waiting[rank]]
    mine = everyone[ranks.rank][0]
    said = run_state.part(_Said)
    if mine in said or ranks.rank != callers[0] or not settings.current().notes:
        return
    said.add(mine)
    if len({doing for doing, _, _ in everyone}) > 1:
        doing: dict[str, list[int]] = {}
        for rank, (what, details, _) in enumerate(everyone):
            name, at, where = what.removeprefix(CALL).rpartition(" at ")
            shown = f"{name}({', '.join(details)}){at}{where}" if what.startswith(CALL) else what
            doing.setdefault(shown, []).append(rank)
        parts = "; ".join(f"{name_ranks(some)}: {what}" for what, some in doing.items())
        ranks.log(f"ranks are at different lines of the script, and each does its own call ({parts})")
    else:
        other = next(rank for rank, (_, details, _) in enumerate(everyone) if details != everyone[ranks.rank][1])
        texts = [", ".join(everyone[rank][1]) for rank in (ranks.rank, other)]
        ranks.log(
            f"{mine.removeprefix(CALL)} has other arguments on each rank, so each rank does its own "
            f"(rank {ranks.rank}: {texts[0]}; rank {other}: {texts[1]})"
        )


def _pack(value: Any, call: Call) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise MatexError(
            f"{call.what} gives a {type(value).__name__}, which cannot be handed to the other ranks ({error}): take "
            "--files every-rank."
        ) from error


def describe(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, ...]:
    """Arguments in words, the same on ranks that give the same: of objects the type, of long ones a checksum.

    Args:
        args, kwargs: of a call of the script.
    """
    return (*map(_word, args), *(f"{name}={_word(value)}" for name, value in sorted(kwargs.items())))


def _word(value: Any) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, (list, tuple)):
        text = f"[{', '.join(map(_word, value))}]"
    elif isinstance(value, (str, bytes, int, float, bool, type(None))):
        text = repr(value)
    else:
        text = type(value).__name__
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… {checksum(text.encode(errors='replace')):08x}"
