"""A rank of a benchmark in a private layer, as `matex-tf run --files private` gives a script one.

python -m benchmarks.in_layer MODULE ARGUMENTS      (under mpirun)
"""

from __future__ import annotations

import runpy
import sys

from matex_tf.job import layered
from matex_tf.job.target import Target


def main() -> None:
    target = Target(sys.argv[1], tuple(sys.argv[2:]), is_module=True)
    mounts = layered.enter(["--files", "private", *target.words])  # before NumPy and MPI start threads
    from matex_tf.core import world
    from matex_tf.patches.common import active_flag
    from matex_tf.settings import Settings

    if not world.init().is_single:  # one rank never has a layer
        layered.begin(world.init(), Settings.read({"files": "private"}), target, mounts)
        if not active_flag.layers().on:
            sys.exit("there is no private layer: see matex-tf doctor")
    sys.argv = sys.argv[1:]
    runpy.run_module(target.name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
