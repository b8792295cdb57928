"""A rank of the pool: waits on its socket for a case, runs it on the world that the driver asks for, and reports."""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import gc
import inspect
import itertools
import os
import pickle
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from multiprocessing import connection
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))

from pool import Outcome  # noqa: E402

from matex_tf.core import starting  # noqa: E402
from matex_tf.layer import kernel  # noqa: E402
from tests.support import leftovers  # noqa: E402
from tests.support.named import find  # noqa: E402

#: Whether ranks of more than one have a private layer in each case.
LAYERED = os.environ.get("MATEX_TEST_FILES") == "private"

calls: collections.Counter[str] = collections.Counter()


def main() -> None:
    address, directory, bare = sys.argv[1], Path(sys.argv[2]), "bare" in sys.argv[3:]
    be_forked(bare)
    if LAYERED:
        kernel.leave_mounts()
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
    log = os.open(directory / f"rank.{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    stacks = (directory / f"rank.{rank}.stacks").open("w")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    (directory / f"rank.{rank}.pid").write_text(str(os.getpid()))
    link = connection.Client(address, "AF_UNIX")
    link.send_bytes(pickle.dumps((rank, os.getpid())))
    try:
        prepare(bare)
    except BaseException:
        link.send_bytes(pickle.dumps(traceback.format_exc()))
        raise
    link.send_bytes(pickle.dumps(None))
    while True:
        try:
            message = pickle.loads(link.recv_bytes())
        except (EOFError, ConnectionError):
            break
        link.send_bytes(answer(message))
    from mpi4py import MPI

    MPI.Finalize()
    os._exit(0)  # TensorFlow takes seconds to leave by itself


def be_forked(bare: bool) -> None:
    """Be a rank that a process with all that is imported has forked, where that can be."""
    try:
        from matex_tf.features.warm import imports, meeting_point
        from matex_tf.features.warm.process import Refused
    except ModuleNotFoundError:  # the feature is not there (scripts/without)
        return
    with contextlib.suppress(Refused):  # else each rank imports for itself
        needed = import_tables if bare else lambda: imports.import_all(seed=0)
        meeting_point.enter(needed, starting.local_size_in(os.environ))


def import_tables() -> None:
    """Import what cases without Keras need."""
    import h5py  # noqa: F401
    import netCDF4  # noqa: F401
    import pandas  # noqa: F401

    from matex_tf.core import world  # noqa: F401


def leave_pipelines_as_they_are() -> None:
    """Let functions of tf.data run as they are traced; those of steps go through Grappler as ever.

    Grappler worked on each of them whenever an iterator was made, which took a sixth of the time of all cases. Ranks of
    launched jobs have it.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    tf.constant(0)  # makes TensorFlow's context, with these options: tf.data has them from now on, and steps do not
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def prepare(bare: bool) -> None:
    """Be a rank, with all that every case needs."""
    from matex_tf.core import world

    world.init()
    count_meetings(world.World)
    if nbytes := os.environ.get("MATEX_TEST_BUCKET_BYTES"):  # so that small models have several buckets
        from matex_tf.exchange import bucket

        bucket.MEGABYTE = int(nbytes)
    if bare:
        return
    import matex_tf.patches

    random.seed(0)  # as a job does
    matex_tf.patches.install(seed=0)
    leave_pipelines_as_they_are()
    import keras

    if os.environ.get("MATEX_TEST_TRACEBACKS") == "full":
        keras.config.disable_traceback_filtering()
    gc.collect()
    gc.freeze()  # what was imported stays: every later collection, one at least after each case, is spared the walk


def count_meetings(world_class: Any) -> None:
    """Count every meeting of ranks by its purpose, so that a test can show that work was shared at all."""
    meet = world_class.barrier

    def counted(self: Any, what: str, *args: Any, **kwargs: Any) -> None:
        calls[what] += 1
        return meet(self, what, *args, **kwargs)

    world_class.barrier = counted

    from matex_tf.exchange.process_group import ProcessGroup

    summed, begun, summed_whole = ProcessGroup.sum, ProcessGroup.begin, ProcessGroup.sum_whole

    def counted_sum(self: Any, plan: Any, number: int, *args: Any) -> Any:
        calls[plan.what] += number == 0
        return summed(self, plan, number, *args)

    def counted_begin(self: Any, plan: Any) -> None:
        calls[plan.what] += 1
        return begun(self, plan)

    def counted_whole(self: Any, plan: Any, *args: Any) -> Any:
        calls[plan.what] += 1
        return summed_whole(self, plan, *args)

    ProcessGroup.sum, ProcessGroup.begin = counted_sum, counted_begin  # type: ignore[method-assign]
    ProcessGroup.sum_whole = counted_whole  # type: ignore[method-assign]


worlds: dict[tuple[int, ...], Any] = {}


def answer(message: dict[str, Any]) -> bytes:
    """Run a case if this rank is in one of its groups; the pickled outcome, or None for a rank left out."""
    from matex_tf.core import world

    if message["fresh"]:
        worlds.clear()
    everyone = world.init()
    for group in message["groups"]:  # collective over all ranks: also where this one is left out
        if group not in worlds:
            worlds[group] = everyone.subset(group)
    for group, place in zip(message["groups"], message["places"], strict=True):
        if everyone.rank in group:
            mine = world.World() if len(group) == 1 else worlds[group]
            assert mine.size == len(group) and mine.rank == group.index(everyone.rank)
            return run(mine, message["case"], message["kwargs"], place)
    return pickle.dumps(None)


def run(mine: Any, case: str, kwargs: dict[str, Any], place: str) -> bytes:
    """Run one case on one world."""
    from matex_tf import errors
    from matex_tf.core import world
    from matex_tf.state import run_state

    outcome = Outcome(mine.rank, mine.size)
    home = os.getcwd()
    calls.clear()
    random.seed(0)  # ranks have run other cases before
    if seeds := sys.modules.get("matex_tf.patches.common.seeds"):
        seeds.use(0)
        seeds.seed_tensorflow(sys.modules["tensorflow"])
    run_state.current().asked.clear()  # of an earlier case, perhaps of this rank alone
    errors.remember(None)
    leftovers.begin()
    if wrapping := sys.modules.get("matex_tf.patches.common.wrapping"):
        wrapping.put_aside(False)  # an import of a case may have done that, on the ranks that ran it
    begin, begin_cpu = time.perf_counter(), time.process_time()
    try:
        function = find(case)
        if "tmp" in inspect.signature(function).parameters:
            kwargs = {**kwargs, "tmp": place}
        os.chdir(place)
        with world.use(mine), layer_of(mine), recording_if_asked(case):
            assert world.current().size == outcome.size and world.current().rank == outcome.rank
            outcome.value = pickle.dumps(function(**kwargs))
    except BaseException as error:
        behind = errors.remembered()
        outcome.value, outcome.error = None, f"{type(error).__name__}: {error}"
        outcome.kinds = tuple(kind.__name__ for kind in type(error).__mro__)
        outcome.traceback = traceback.format_exc()
        if behind is not None and behind is not error:
            outcome.error += f"\nbehind it, {type(behind).__name__}: {behind}"
            outcome.kinds += tuple(kind.__name__ for kind in type(behind).__mro__)
            outcome.traceback += "\nbehind it:\n" + "".join(traceback.format_exception(behind))
    finally:
        os.chdir(home)
    outcome.seconds, outcome.cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    outcome.calls = dict(calls)
    sys.stdout.flush()
    sys.stderr.flush()
    errors.remember(None)
    tidy()
    return pickle.dumps(outcome)


@contextlib.contextmanager
def recording_if_asked(case: str) -> Iterator[None]:
    """Let what is not recorded for `scripts/verify_cases` run as in a job that is not: it asks what it always asks."""
    kept = None if "cases.recorded" in str(case) else os.environ.pop(starting.RECORD, None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ[starting.RECORD] = kept


@contextlib.contextmanager
def layer_of(mine: Any) -> Iterator[None]:
    """With a private layer for each rank of a case, where that is asked for."""
    if mine.is_single or not LAYERED:
        yield
        return
    from matex_tf.job import layered
    from matex_tf.patches.common import active_flag

    layer, reason = layered.put_up(mine, [os.getcwd()])
    assert layer is not None, reason
    names = os.rename, os.replace
    try:
        layered.use(mine, layer, layered.Mounts(""))
        yield
    finally:
        os.rename, os.replace = names
        mine.on_meeting = lambda: None
        active_flag.layers().on = False
        os.chdir("/")
        layer.publish()
        layer.take_down()


tidied = itertools.count(1)


def tidy() -> None:
    """Leave Keras as a fresh process has it.

    What a case leaves behind (functions that TensorFlow keeps) is frozen after the collection, or every later one would
    walk over it again: after a few hundred cases that takes longer than a case. Now and then all is looked through.
    """
    from matex_tf.state import notes, run_state

    if next(tidied) % 64 == 0:
        gc.unfreeze()
    if "keras" in sys.modules:
        import keras
        import tensorflow as tf

        keras.backend.clear_session()  # collects garbage as well
        keras.mixed_precision.set_global_policy("float32")
        keras.backend.set_floatx("float32")
        tf.config.run_functions_eagerly(False)
    if loops := sys.modules.get("matex_tf.patches.loops.replica_sync"):  # other ranks may not have run this case
        for known in (loops._Trained, loops._OfRank, loops._Optimizer, loops._Layer):
            notes.clear(known)
        run_state.current().part(loops._Count).so_far = 0
    if position := sys.modules.get("matex_tf.patches.loops.position"):
        position.reset()  # a batch of a `DataSet` holds until the next one
    for one in filter(None, worlds.values()):
        one.holds_shard = False  # a `DataSet` of a case is not the next one's
    gc.freeze()


if __name__ == "__main__":
    main()
