"""`matex-tf run --faults restart` with ranks of a `warm` server.

python tests/support/again.py SOCKET RANKS [--setting value ...] SCRIPT
"""

from __future__ import annotations

import sys
from pathlib import Path

import warm

from matex_tf.features.restart import launcher
from matex_tf.job import command_line
from matex_tf.launch import mpirun_command
from matex_tf.settings import Settings, as_flags


def main() -> int:
    """Returns the exit code of the job."""
    given = command_line.of_python().parse(sys.argv[3:])
    (script,) = given.rest
    mpirun = mpirun_command.find_mpirun()

    def line(ranks: int, hosts: str, more: dict[str, str]) -> list[str]:
        words = [*mpirun_command.mpirun_line(mpirun, ranks, hosts), *warm.command(Path(sys.argv[1]))]
        return [*words, *as_flags({"faults": "restart", **given.flags, **more}), script]

    return launcher.run(line, int(sys.argv[2]), "", Settings.read(given.flags), script, mpirun)


if __name__ == "__main__":
    sys.exit(main())
