"""`--files private` and `auto`: each rank has a layer of its own over what a script may change (`matex_tf.layer`).

Mounts of its own it has from before Python has a thread; the layer is put up when the ranks know each other, by all of
them or by none: where one of them cannot have it, calls that change files are done by one rank for all.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matex_tf.core import mismatch, namespaces, starting
from matex_tf.errors import MatexError
from matex_tf.job.target import Target
from matex_tf.launch import lifetime, slurm
from matex_tf.layer import asking, kernel, leftovers, names, places, shortcomings, strangers, user_namespace
from matex_tf.layer.private_layer import PrivateLayer
from matex_tf.settings import Settings

if TYPE_CHECKING:  # which would import numpy, and start threads, too early
    from matex_tf.core.world import World

#: Directories, by their variables, that the launcher, MPI and what compares records have in common with all ranks.
_COMMON = ("PMIX_SERVER_TMPDIR", "OMPI_FILE_LOCATION", "PRTE_TMPDIR", "PMI_TMPDIR", starting.RECORD)

#: Values of `--files` that ask for layers: with `auto` it is said that there are none where that matters.
_WITH_LAYERS = ("private", "auto")
#: Bytes for each rank of a node that `auto` asks of TMPDIR, on a disk.
_ROOM = 1 << 30
_PAUSE = 0.5  # seconds between two publications, at least


@dataclass(frozen=True)
class Mounts:
    """What this process has of mounts.

    Attributes:
        refused: why there are none of its own; empty where there are.
        of_others: whether it is in a user namespace, where files of another owner or group are other ones'.
    """

    refused: str = "this process was not started for it"
    of_others: bool = False


def enter(arguments: Sequence[str]) -> Mounts:
    """Before anything starts a thread: have mounts of one's own, where that is asked for and can be.

    Args:
        arguments: of `python -m matex_tf`.
    """
    if not starting.started_by_mpi() or starting.alone_in(os.environ):
        return Mounts()
    from matex_tf.job import command_line

    try:
        given = command_line.of_python().parse(arguments)
        if given is None or (files := Settings.read(given.flags).files) not in _WITH_LAYERS:
            return Mounts()
        without = _without(Target.read(given.rest), files)
    except (MatexError, BrokenPipeError):
        return Mounts()  # which the rank will find out, and say
    if without is not None:
        return without
    mark = mismatch.fingerprint(lifetime.job(lifetime.launcher(starting.parent())), [])
    return enter_namespace("{:08x}{:08x}".format(*mark), slurm.ranks_here())


def enter_namespace(mark: str = "", ranks: int = 0) -> Mounts:
    """Have mounts of one's own. Args: see `user_namespace.enter`; a rank that comes to a job does so by itself."""
    before = os.stat("/proc/self/ns/user").st_ino
    try:
        user_namespace.enter(mark, ranks)
    except OSError as error:
        said = kernel.forbidden_by()
        return Mounts(f"{error.filename}: {error.strerror}" + (f", {said}" if said else ""))
    return Mounts("", of_others=os.stat("/proc/self/ns/user").st_ino != before)


def _without(target: Target, files: str) -> Mounts | None:
    """Why a script runs without layers; None where it does not."""
    if target.is_module and target.name.startswith("matex_tf."):
        return Mounts("its files are those of matex-tf")
    source = asking.file_of_module(target.name), ""
    if not target.is_module:
        source = target.name if target.is_in_a_file else "", target.text
    if shared := asking.shares_files(*source, perhaps=files == "auto"):
        return Mounts(f"{shared}, so its ranks may share files on purpose")
    if files == "auto" and (why := asking.once_is_better(*source)):
        return Mounts(why)
    return None


def begin(world: World, settings: Settings, target: Target, mounts: Mounts) -> None:
    """Put up the layers of all ranks, or say why there are none. Collective.

    Args:
        world: the ranks that train.
        settings: with `files` other than "private" and "auto" nothing happens.
        target: the script, whose directory gets a layer as the working directory does.
        mounts: what this process has of them.
    """

    if settings.files not in _WITH_LAYERS:
        return
    reason = "groups that join a job share its files" if settings.is_guest else mounts.refused
    reasons = world.allgather(reason, "see whether layers can be had")
    layer: PrivateLayer | None = None
    if world.local_rank == 0:
        leftovers.tidy()
    if not any(reasons):
        tried = [os.getcwd(), *([] if target.is_module else [os.path.dirname(os.path.abspath(target.name))])]
        layer, reason = put_up(
            world,
            [path for path in dict.fromkeys(tried) if os.path.isdir(path)],
            _ROOM * world.local_size if settings.files == "auto" else 0,
        )
        reasons = world.allgather(reason, "see whether all ranks have their layers")
    failed = [rank for rank, why in enumerate(reasons) if why]
    if failed:
        if layer is not None:
            layer.take_down()
        why = f"{mismatch.name_ranks(failed)}: {reasons[failed[0]]}"
        if world.rank == 0 and settings.notes and settings.files == "private":
            world.log(f"no private layers ({why}): one rank changes files while the others wait, as with --files once")
        return
    assert layer is not None
    _keep(world, layer, settings, mounts)


def put_up(world: World, tried: list[str], room: int = 0) -> tuple[PrivateLayer | None, str]:
    """The layer of this rank, or why there is none. Collective.

    Args:
        tried: directories in which a file is made for a moment.
        room: bytes that there must be on the disk for what ranks of this node write; 0 for whatever there is.
    """
    from matex_tf.patches.files import systems

    tops, reason = [], ""
    try:
        tops = places.to_cover(tried)
    except OSError as error:
        reason = str(error)
    others = world.allgather((tops, reason), "compare the directories that get layers")
    if any(why for _, why in others):
        return None, reason
    wanted = sorted({top for found, _ in others for top in found})
    doers = {top: systems.doers(world, top) for top in wanted}
    common = [os.environ[name] for name in _COMMON if os.path.isdir(os.environ.get(name, ""))]
    if world.checkpoints is not None and os.path.isdir(world.checkpoints.path):
        common.append(os.fspath(world.checkpoints.path))
    common = [path for path in common if any(os.path.realpath(path).startswith(top + os.sep) for top in tops)]
    try:
        first = [top for top in tops if doers[top][world.rank] == world.rank and world.arrival is None]
        layer = PrivateLayer(tops, tried, common, first, room)
        layer.shared_by = {
            top: [rank for rank, doer in enumerate(doers[top]) if doer == doers[top][world.rank]] for top in tops
        }
        if world.arrival is not None:  # to ranks of this host alone, all of which come before it
            layer.shared_by = dict.fromkeys(tops, [])
    except (OSError, MatexError) as error:
        return None, str(error)
    return layer, ""


def _keep(world: World, layer: PrivateLayer, settings: Settings, mounts: Mounts) -> None:
    """To the end of this process."""
    from matex_tf.patches.files import callers

    use(world, layer, mounts).hide = _hiding(world, layer)
    names.draw_alike(
        world.broadcast(int.from_bytes(os.urandom(16), "little"), "share the names of files that are drawn")
    )
    guest = world.arrival is not None
    if world.guard is not None:
        world.guard.on_change.append(lambda _: _take_over(world, layer))

    def end() -> None:
        layer.publish()
        if world.rank and not guest and callers.asks() and (count := layer.keep_missing()) and settings.notes:
            files = "a file" if count == 1 else f"{count} files"
            world.log(f"rank {world.rank} has made {files} that rank 0 has not made; matex_tf keeps them")
        layer.remove()

    atexit.register(namespaces.here_alone(end))  # before the script registers anything: so it comes last


def _hiding(world: World, layer: PrivateLayer) -> Callable[[], None]:
    """Let this rank not see what others have put in its place; what it does when all meet. Collective."""
    from matex_tf.patches.files import callers

    everyone = world.allgather(layer.first_of(), "find where ranks say what they put in its place")
    here = (everyone[rank] for rank in world.nodes[world.node])
    found = [each for first in here for each in layer.strangers_of(first)]
    return strangers.watch(found, callers.asks) if found else lambda: None


def use(world: World, layer: PrivateLayer, mounts: Mounts) -> _Publishing:
    """From now on let this rank do everything itself; what counts is put in its place when all meet.

    Args:
        world: the ranks that train; what publishes is called when they meet.
        layer: of this rank, put up.
        mounts: what this process has of them; says whether files of others are copied before they are changed.
    """
    from matex_tf.patches.common import active_flag

    active_flag.layers().on = True
    active_flag.layers().refresh = layer.refresh  # type: ignore[method-assign]
    layer.moved = shortcomings.make_up_for(layer.devices(), mounts.of_others)
    world.on_meeting = publishing = _Publishing(layer)
    world.on_end = publishing.at_once
    return publishing


def finish(world: World) -> None:
    """The script has ended here. What the first rank has written is in its place before all ranks meet for the last
    time, or another rank takes for its own alone what the first has too; and after all have come to their end, or one
    that still runs finds what it has not yet made. Collective, also of ranks without a layer: others may have one, such
    as those that have come while the job ran."""
    world.barrier("reach the end of the script")
    if isinstance(world.on_meeting, _Publishing):
        world.on_meeting.at_once()


def failed(world: World, error: BaseException) -> None:
    """The script has ended here with an error: what the first rank has written is in its place. Says where what is
    written lies if there is no room for it.

    Args:
        world: the ranks that train; nothing happens where this one has no layer.
        error: also a `SystemExit`; one with exit code 0 is no error, and nothing happens.
    """
    ends_well = isinstance(error, SystemExit) and error.code in (None, 0)
    if isinstance(world.on_meeting, _Publishing) and not ends_well:
        if "No space left" in str(error):
            place = world.on_meeting.layer.place
            world.log(f"what a rank writes is in {place} while the job runs: set TMPDIR, or take --files once")
        world.on_meeting.at_once()


class _Publishing:
    """Publishes, when the ranks have met; not so often that it would take more than a tenth of the time."""

    hide: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, layer: PrivateLayer):
        self.layer, self._next = layer, 0.0

    def __call__(self) -> None:
        self.hide()
        begin = time.monotonic()
        if begin < self._next or threading.current_thread() is not threading.main_thread():
            return
        self.at_once()
        now = time.monotonic()
        self._next = now + max(_PAUSE, 10 * (now - begin))

    def at_once(self) -> None:
        self.layer.publish()


def _take_over(world: World, layer: PrivateLayer) -> None:
    """Ranks have died: where one of them was the first of a file system and this one comes next, its files count."""
    alive, own = set(world.first_ranks), world.first_ranks[world.rank]
    for top, ranks in layer.shared_by.items():
        if own == min(alive.intersection(ranks) if ranks else alive):
            layer.be_first(top, only_newer=True)
    layer.publish()
