"""`matex-tf run --faults restart` with ranks of a `warm` server.

python tests/again.py SOCKET RANKS [--setting value ...] SCRIPT
"""

from __future__ import annotations

import sys
from pathlib import Path

import warm

from matex_tf.launch import mpirun_command, restart
from matex_tf.settings import Settings, flag_name, split_flags


def main() -> int:
    """Returns the exit code of the job."""
    flags, (script,) = split_flags(sys.argv[3:])
    mpirun = mpirun_command.find_mpirun()

    def line(ranks: int, hosts: str, more: dict[str, str]) -> list[str]:
        words = [*mpirun_command.mpirun_line(mpirun, ranks, hosts), *warm.command(Path(sys.argv[1]))]
        for name, value in {"faults": "restart", **flags, **more}.items():
            words += [flag_name(name), value]
        return [*words, script]

    return restart.run(line, int(sys.argv[2]), "", Settings.read(flags), script, mpirun)


if __name__ == "__main__":
    sys.exit(main())
