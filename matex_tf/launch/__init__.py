"""From a command line to ranks: mpirun, Slurm, restarts, and what ties the processes of a job together.

It may import core, storage and faults. Start reading in mpirun_command.py.
"""
