"""Who we are, in Horovod's words: init, ranks and sizes, and what was built."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from matex_tf.core import trace, world
from matex_tf.features.horovod import alias
from matex_tf.features.horovod.names.core.coordinator import Coordinator
from matex_tf.patches.common import log_once
from matex_tf.state import run_state

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "sycl_built",
]

#: Reduction operations, with Horovod's numbers.
Average, Sum, Adasum, Min, Max, Product = range(6)
OP_NAMES = {Average: "average", Sum: "sum", Adasum: "adasum", Min: "min", Max: "max", Product: "product"}

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


@dataclasses.dataclass
class Joined:
    """What `init` has begun: Horovod's functions take nothing along that could hold it.

    Attributes:
        coordinator: of all ranks; None before init and after shutdown.
        left: by shutdown, for the next init, so that communicators do not add up.
        timeline: where the one that was begun goes; empty for none.
    """

    coordinator: Coordinator | None = None
    left: dict[world.World, Coordinator] = dataclasses.field(default_factory=dict)
    timeline: str = ""


def _joined() -> Joined:
    return run_state.current().part(Joined)


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the other ranks. All of them must call it; may be called more than once.

    Args:
        comm: None, the ranks of the whole job, or an mpi4py communicator of all of them.
        process_sets: process sets, or lists of ranks, to add at once; or "dynamic", as they can be added anyway.

    Raises:
        NotImplementedError: comm is a part of the job.
        ValueError: on every rank, a process set that cannot be or that is there already. None of them is added then.
    """
    from matex_tf.features.horovod.names.core import process_sets as sets

    ranks, joined = world.current(), _joined()
    _check_comm(comm, ranks.size)
    if joined.coordinator is None or joined.coordinator.ranks is not ranks:
        joined.coordinator = joined.left.pop(ranks, None) or Coordinator(ranks)
        sets.begin(joined.coordinator)
        sets.close_left()
        if not ranks.is_single:
            log_once.log(alias.NOTE)
            _abort_on_exception(ranks)
        name = os.environ.get("HOROVOD_TIMELINE", "")
        if name and name.upper() != "DYNAMIC":
            start_timeline(name)
    if process_sets is not None and not isinstance(process_sets, str):
        sets.add_all([one for one in process_sets if getattr(one, "process_set_id", None) is None])


def reinit() -> None:
    """Ranks have been left behind: go on with those that are left, without their process sets."""
    from matex_tf.features.horovod.names.core import process_sets as sets

    joined = _joined()
    joined.left.clear()
    if joined.coordinator is not None:
        joined.coordinator = Coordinator(world.current())
        sets.begin(joined.coordinator)
    sets.forget_left()


def _check_comm(comm: Any, size: int) -> None:
    if comm is None:
        return
    given = list(comm) if isinstance(comm, Sequence) else list(range(comm.Get_size()))
    if given and sorted(given) != list(range(size)):
        raise NotImplementedError(
            f"hvd.init(comm) was given {len(given)} of {size} ranks; matex_tf takes all of them: start a job of its "
            "own for each part, or use hvd.add_process_set for collectives among some ranks."
        )


def _abort_on_exception(ranks: world.World) -> None:
    """Where no launcher of matex_tf watches over the script, end all ranks when one fails."""
    from matex_tf import patches

    if patches.installed() or getattr(sys.excepthook, "aborts_all_ranks", False):
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        before(kind, error, tb)
        sys.stderr.flush()
        ranks.abort(1)

    hook.aborts_all_ranks = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def shutdown() -> None:
    """Leave; collectives need another `init` then. The ranks of the job go on."""
    from matex_tf.features.horovod.names.core import process_sets as sets

    joined = _joined()
    if joined.timeline:
        stop_timeline()
    if joined.coordinator is not None and not joined.coordinator.ranks.is_single:
        joined.left[joined.coordinator.ranks] = joined.coordinator
    joined.coordinator = None
    sets.end()


def coordinator() -> Coordinator:
    """The coordinator of all ranks.

    Raises:
        ValueError: `init` was not called.
    """
    found = _joined().coordinator
    if found is None:
        raise ValueError(NOT_INITIALIZED)
    return found


def is_initialized() -> bool:
    """Whether `init` was called, and `shutdown` not since."""
    return _joined().coordinator is not None


def size() -> int:
    """The number of ranks."""
    return coordinator().ranks.size


def rank() -> int:
    """This rank, 0 to size - 1."""
    return coordinator().ranks.rank


def local_size() -> int:
    """The number of ranks on this node."""
    return coordinator().ranks.local_size


def local_rank() -> int:
    """This rank among those of its node."""
    return coordinator().ranks.local_rank


def _across() -> list[int]:
    """The nodes that have a rank with this local rank."""
    ranks = coordinator().ranks
    return [number for number, node in enumerate(ranks.nodes) if len(node) > ranks.local_rank]


def cross_size() -> int:
    """The number of nodes that have a rank with this rank's local rank."""
    return len(_across())


def cross_rank() -> int:
    """This node among those."""
    return _across().index(coordinator().ranks.node)


def is_homogeneous() -> bool:
    """Whether every node has as many ranks."""
    return len({len(node) for node in coordinator().ranks.nodes}) == 1


def mpi_threads_supported() -> bool:
    """True: matex_tf does not start with an MPI without MPI_THREAD_MULTIPLE."""
    coordinator()
    return True


def mpi_enabled() -> bool:
    """True: ranks talk by MPI."""
    return True


mpi_built = mpi_enabled


def gloo_built() -> bool:
    """False: of Gloo, NCCL, DDL and oneCCL there is none here, and tensors go through the memory of the host."""
    return False


gloo_enabled = nccl_built = ddl_built = ccl_built = cuda_built = sycl_built = rocm_built = gloo_built


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin a timeline of all ranks, which rank 0 writes at `stop_timeline`. Every rank must call it.

    Args:
        file_path: rank 0's is taken; for chrome://tracing, ui.perfetto.dev and `matex-tf trace`.
        mark_cycles: taken and ignored; there are no cycles here.
    """
    path = os.path.abspath(file_path)
    trace.start(coordinator().ranks, path)
    _joined().timeline = path


def stop_timeline() -> None:
    """Write the timeline. Every rank must call it; does nothing where none was begun."""
    ranks, joined = coordinator().ranks, _joined()
    if joined.timeline:
        path, joined.timeline = joined.timeline, ""
        trace.write(ranks, path)
