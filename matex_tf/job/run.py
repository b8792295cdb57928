"""Run a script as one rank of a job: what `python -m matex_tf SCRIPT ARGS…` does.

With no MPI launcher, or a world of one rank, the script runs as `python SCRIPT` would run it. Otherwise this module
prepares the rank (threads, seeds, output, patches), runs the script, and sees to it that all ranks end together.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections.abc import Sequence

from matex_tf import settings as settings_module
from matex_tf.core import sign, starting, trace
from matex_tf.core import world as world_module
from matex_tf.core.mismatch import name_ranks
from matex_tf.core.output import Output, close_as_told, write_to_the_user
from matex_tf.core.world import World
from matex_tf.errors import MatexError, MissingPackage, SettingError
from matex_tf.faults import transactions
from matex_tf.features import registry
from matex_tf.job import child_processes, command_line, layered, standard_input, suggestions, watched
from matex_tf.job.finalize import Finalizer, leaves_well, own_traceback
from matex_tf.job.target import Target
from matex_tf.launch import lifetime, loopback, resources
from matex_tf.layer import asking
from matex_tf.settings import Settings
from matex_tf.settings.strategy_registry import STRATEGIES
from matex_tf.watching.meter import Meter
from matex_tf.watching.reporter import Reporter


def main(arguments: Sequence[str], mounts: layered.Mounts | None = None) -> int:
    """Run a script; returns the exit code where it is not the script's own business.

    Args:
        arguments: settings, then the script and its arguments.
        mounts: what this process has of them, for `--files private`.
    """
    os.environ.pop("MATEX_TF", None)
    if starting.started_by_mpi():
        lifetime.end_with_launcher()
    close_as_told()
    if starting.rank_in_environment() == 0:
        write_to_the_user()
    sign.take()
    ending = Finalizer()
    try:
        given = command_line.of_python().parse(arguments)
        if given is None:
            return 0
        settings = Settings.read(given.flags)
        settings_module.use(settings)
        target = Target.read(given.rest)
        world = join()
        if os.environ.get(loopback.PARAMETER) == loopback.INTERFACE:
            loopback.narrow_own()
        if not world.is_single:
            child_processes.part()
    except BrokenPipeError:
        return command_line.reader_gone()
    except MatexError as error:
        return ending.failed_to_start(error)
    world.restarts = settings.faults in registry.faults()
    if world.is_single and not world.restarts and not settings.changes_one_rank:
        return run_alone(target, ending, settings)
    world_module.adopt(world)
    try:
        training: World | None = settings.passed_through("world_that_trains", world)
    except MatexError as error:
        return ending.failed_to_start(error)
    if training is None:
        return 0
    world = training
    world_module.adopt(world)
    run_among(world, target, settings, mounts or layered.Mounts())
    return 0


def run_among(world: World, target: Target, settings: Settings, mounts: layered.Mounts) -> None:
    """Run a script on the ranks that train. Comes back on all of them, or on none.

    Args:
        world: the ranks that train.
        target: the script.
        settings: of this run.
        mounts: what this process has of them, for `--files private`.
    """
    output = Output()
    reporter = None
    ending = Finalizer(world, output)
    trace_path = os.path.abspath(settings.trace)  # the script may go to another directory
    try:
        from matex_tf.patches.files import callers
        from matex_tf.state import run_state

        if world.restarts:
            importlib.import_module(registry.faults()[settings.faults].module).begin(world, settings, target.name)
        seed = prepare(world, settings, output)
        layered.begin(world, settings, target, mounts)
        reporter = watched.begin(world, settings, target, seed, run_state.current().part(Meter))
        settings.call_each("begin", world)
        callers.use(target.name, target.is_module, target.text)
        if settings.env == "hide" and not asking.takes_part(target.name if target.is_in_a_file else "", target.text):
            child_processes.hide()
        if not callers.asks():
            standard_input.share(world)
        with leaves_well(lambda: end_among(world, settings, ending, reporter, trace_path)):
            target.run()
    except BaseException as error:
        ending.end_forked(error)
        if world.arrival is not None:
            world.arrival.refuse(str(error) if isinstance(error, MatexError) else f"{type(error).__name__}: {error}")
        layered.failed(world, error)
        ending.failed(error)  # which comes back for sys.exit(0)
    ending.end_forked()
    if world.arrival is not None:
        world.arrival.refuse("its script has come to its end, and to no fit that the job is in")
    end_among(world, settings, ending, reporter, trace_path)


def end_among(world: World, settings: Settings, ending: Finalizer, reporter: Reporter | None, trace_path: str) -> None:
    """The script has ended well here: see to it that it has on every rank. Comes back on all of them, or on none.

    Args:
        world: the ranks that train.
        settings: of this run.
        ending: ends the job, and reports an error if there still is one.
        reporter: tells how far the job is; None where nothing does.
        trace_path: absolute, of the timeline of `--trace`.
    """
    try:
        from matex_tf import patches

        patches.finish()
        if settings.trace:
            trace.write(world, trace_path)
        if reporter is not None:
            reporter.stop()
        layered.finish(world)
    except BaseException as error:
        ending.failed(error)
    ending.finished()
    if world.checkpoints is not None and world.rank == 0:
        world.checkpoints.leave()
    if world.rank == 0:
        sign.reach()


def join() -> World:
    """The world of this process.

    Raises:
        MissingPackage: there should be one, but no MPI to make it.
    """
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if not world_module.started():
        if tasks.isdigit() and int(tasks) > 1:
            raise MissingPackage(
                f"srun started {tasks} tasks without MPI, so each would train alone: give srun --mpi=pmix, which Open "
                "MPI and MPICH take (--mpi=pmi2 is only for MPICH; srun --mpi=list shows what there is)."
            )
        return World()
    if starting.alone_in(os.environ):
        return World()
    return world_module.init()


def run_alone(target: Target, ending: Finalizer, settings: Settings) -> int:
    """Run a script that nobody shares, and leave its ending to Python. Returns the exit code.

    Args:
        target: the script.
        ending: reports an error of matex_tf's own.
        settings: those that need several ranks have no effect, and a line says so.
    """
    from matex_tf import patches
    from matex_tf.patches.imports import dataset_alias

    without = suggestions.without_effect_alone(settings)
    if without and settings.notes:
        print(f"matex_tf: {without}", file=sys.stderr, flush=True)
    dataset_alias.install()
    registry.start()
    if starting.recorded():
        patches.install_recording(set_seeds(World(), settings.seed))
    try:
        target.run()
    except MatexError as error:
        return ending.failed_to_start(error)
    except SystemExit as error:
        if error.code in (None, 0):
            sign.reach()
        raise
    except Exception as error:
        tb = own_traceback(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(tb), tb)
        return 1
    sign.reach()
    return 0


def prepare(world: World, settings: Settings, output: Output) -> int:
    """Make this process ready to be one rank of many: packages, threads, seeds, output, patches. Returns the seed.

    Args:
        world: the ranks that train.
        settings: of this run.
        output: takes over what the script prints.

    Raises:
        MissingPackage, SettingError: on every rank; something is missing, or does not go together.
    """
    settings.refuse_conflicts(world.size)
    output.redirect(settings.output, world.first_ranks[world.rank])
    world.log_to = output.stderr
    if world.arrival is None:
        world.log = output.say
    else:  # what there is to say before it has come the job has said
        world.arrival.log = output.say
    guard = transactions.install(world, settings)
    if guard is not None:
        guard.on_change.append(lambda survivors: output.speak_up() if world.rank == 0 else None)
    check_packages()
    check_alike(world, settings)
    threads = set_threads(world, settings.threads, settings.reproducible > 0)
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    shared_out = set_gpus(world)
    seed = set_seeds(world, settings.seed)
    if settings.notes and world.rank == 0:
        for line in suggestions.unknown_variables(os.environ):
            print(f"matex_tf: {line}", file=sys.stderr, flush=True)
        where = f"{_count(world.size, 'rank')} on {_count(len(set(world.hosts)), 'node')}"
        print(f"matex_tf: {where}, {threads}{what_changes(world, settings)}", file=sys.stderr, flush=True)
    from matex_tf import patches
    from matex_tf.state import run_state

    if settings.trace:
        trace.start(world, os.path.abspath(settings.trace))
    if shared_out:
        run_state.current().begin(run_state.Devices(listed, shared_out=True))
    patches.install(seed=seed)
    return seed


def check_packages() -> None:
    """See that what Keras will use is there, and served.

    Raises:
        MissingPackage: TensorFlow, or another backend that Keras is set to use, is not installed.
        SettingError: Keras is set to use something else.
    """
    from matex_tf.patches.imports import other_frameworks

    served = registry.backends()
    if (backend := os.environ.get("KERAS_BACKEND") or "tensorflow") not in served:
        raise SettingError(
            f"KERAS_BACKEND is {backend!r}, and matex_tf trains with {' and '.join(served)}: set it to "
            f"{' or '.join(served)}{registry.installed_by(f'KERAS_BACKEND={backend}')}."
        )
    if (backend := other_frameworks.backend_asked_for()) in served and backend != "tensorflow":
        if importlib.util.find_spec(backend) is None:
            raise MissingPackage(f"{backend} is not installed in {sys.prefix}: pip install '{served[backend]}'.")
        return
    if importlib.util.find_spec("tensorflow") is None:
        raise MissingPackage(
            f"TensorFlow is not installed in {sys.prefix}: pip install 'matex_tf[cpu]', or tensorflow for your machine."
        )


#: Settings that may differ between ranks: what a rank has of its node, and where its words go.
_OF_A_RANK = ("threads", "output", "trace", "notes")


def check_alike(world: World, settings: Settings) -> None:
    """See that the ranks are processes of one kind: they hash text alike, and have the same settings. Collective.

    Args:
        world: whose ranks are compared.
        settings: this rank's; those that a rank has of its node may differ.

    Raises:
        SettingError: they do not.
    """
    values = {name: value for name, value in settings.values().items() if name not in _OF_A_RANK}
    everyone = world.allgather((starting.hash_mark(), values), "compare hashes and settings")
    others = [rank for rank, (mark, _) in enumerate(everyone) if mark != everyone[0][0]]
    if others:
        raise SettingError(
            f"text hashes otherwise on {name_ranks(others)} than on rank 0, so a set is in another order there, and a "
            f"vocabulary made from it another: give all ranks the same {starting.HASH_SEED} (python -R, -E and -I "
            "ignore it)."
        )
    for name, value in everyone[0][1].items():
        differing = [rank for rank, (_, other) in enumerate(everyone) if other[name] != value]
        if differing:
            raise SettingError(
                f"{settings_module.flag_name(name)} is {everyone[differing[0]][1][name]!r} on {name_ranks(differing)}, "
                f"and {value!r} on rank 0: give all ranks the same, as a flag, or as "
                f"{settings_module.variable_name(name)} in the environment of each."
            )


def set_threads(world: World, wanted: int, reproducible: bool = False) -> str:
    """Divide the cores of this node among its ranks, and say how; what the environment says already stays.

    Args:
        wanted: cores for each rank; 0 divides them evenly. A rank that the launcher has bound to cores of its own
            keeps them all, and a rank under Slurm has no more than `--cpus-per-task`.
        reproducible: whether an op has as many threads wherever it runs: kernels cut their work by them, and add up
            what the pieces give.
    """
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
    sharing = world.allgather((world.host, mine), "share the cores of a node").count((world.host, mine))
    asked = os.environ.get("SLURM_CPUS_PER_TASK", "")
    most = int(asked) if asked.isdigit() and int(asked) else len(mine)
    threads = wanted or max(1, min(most, len(mine) // sharing))
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(wanted or 1 if reproducible else threads))
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", str(max(2, threads)))  # one may wait for other ranks
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    crowded = f" ({sharing} ranks share {_count(len(mine), 'core')})" if sharing > len(mine) else ""
    return f"{_count(threads, 'thread')} each{crowded}"


def what_changes(world: World, settings: Settings) -> str:
    """What settings change of the answer, for the end of the first line; empty where they change nothing.

    Args:
        world: the ranks that train: some settings have no effect on one node.
        settings: of this run.
    """
    chosen, said = STRATEGIES[settings.strategy](settings), ""
    if chosen.changes:
        said = f"; --strategy {chosen.name} changes the answer: {chosen.changes}"
    if settings.codec != "none":
        nothing = len(world.nodes) == 1 and not chosen.encodes_in_node
        said += f"; --codec {settings.codec}: {'no effect on one node' if nothing else chosen.rounded}"
    if settings.batch == "per-rank":
        said += f"; --batch per-rank: the global batch is {settings.training_ranks(world.size)} times as large"
    return said + "".join(f"; {one.changes}" for one in settings.declared if getattr(one, "changes", ""))


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number > 1)}"


def set_gpus(world: World) -> str:
    """Give each rank of a node one of its GPUs, in turn.

    CUDA_VISIBLE_DEVICES, where it is set, lists what there is to share; a list of one (a batch system has done this
    already) or none stays as it is.

    Returns:
        The device, as CUDA_VISIBLE_DEVICES names it; empty where nothing was shared out.
    """
    devices = resources.gpus()
    if len(devices) < 2:
        return ""
    place = world.local_rank if world.arrival is None else world.arrival.place
    os.environ["CUDA_VISIBLE_DEVICES"] = resources.gpu_of(place, devices)
    return os.environ["CUDA_VISIBLE_DEVICES"]


def set_seeds(world: World, wanted: int) -> int:
    """Seed Python and NumPy alike on all ranks; returns the seed, for TensorFlow and Keras. Collective.

    Args:
        world: whose rank 0 decides: a job that is started again gets the seed that its checkpoints have.
        wanted: the setting `seed`; below 0 one is drawn.
    """
    import numpy as np

    from matex_tf.state import run_state

    seed = wanted if wanted >= 0 else int.from_bytes(os.urandom(4), "little") >> 1
    if world.checkpoints is not None and world.rank == 0:
        seed = world.checkpoints.seed(seed)  # a job that is started again draws what it drew before
    seed = world.broadcast(seed, "share the seed")
    if run_state.current().prepared != seed:  # or they are seeded, and what was imported since has drawn from them
        random.seed(seed)
        np.random.seed(seed % 2**32)
    return seed
