"""`python -m matex_tf.features.join.newcomer`: a rank that comes to a running job, which starts it; see growth.py."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

#: Settings that are others here.
_OWN = {"watch": "off", "files": "private", "notes": "off"}


def main() -> None:
    """Run the script of the job as one rank; in its `fit` it becomes one of the job's."""
    from matex_tf.job import layered

    mounts = layered.enter_namespace()

    from matex_tf import settings as settings_module
    from matex_tf.core import sign
    from matex_tf.core import world as world_module
    from matex_tf.errors import MatexError
    from matex_tf.features.join.arrival import Arrival
    from matex_tf.features.join.growth import Growth
    from matex_tf.job import child_processes, run
    from matex_tf.job.target import Target
    from matex_tf.launch import lifetime
    from matex_tf.settings import Settings

    lifetime.end_with_launcher()
    sign.take()
    world, bridge, told = world_module.arrive()
    try:
        arrival = Arrival(told, bridge)
    except OSError:  # the first rank has died meanwhile
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        given = told["run"]
        os.environ.update(told["environ"])
        os.chdir(given["directory"])
        world.first_ranks, world.founders = [told["number"]], told["founders"]
        vars(os)["_exit"] = _killed(os.getpid(), os._exit)
        world.log = lambda line: None  # what there is to say the job has said
        world.arrival, world.growth = arrival, Growth(world, given, told["cores"])
        if mounts.refused:
            raise MatexError(f"it can have no layer of its own, and would write files once more ({mounts.refused}).")
        of_job = {one.name for one in settings_module.options() if one.of_job}
        job = {name: text for name, text in given["settings"].items() if name not in of_job}
        settings = Settings.read({**job, **_OWN, "seed": str(given["seed"])})
        settings_module.use(settings)
        child_processes.part()
        world_module.adopt(world)
        target = Target.read(given["words"])
    except (OSError, MatexError) as error:
        return arrival.refuse(str(error))
    run.run_among(world, target, settings, mounts)


def _killed(process: int, leave: Callable[[int], NoReturn]) -> Callable[[int], Any]:
    """`os._exit` of a rank that has come: Open MPI ends the whole job where such a rank exits."""
    return lambda code: os.kill(process, signal.SIGKILL) if os.getpid() == process else leave(code)


if __name__ == "__main__":
    main()
    sys.exit(0)
