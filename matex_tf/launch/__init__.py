"""From a command line to ranks: mpirun, Slurm, and what ties the processes of a job together.

It may import core and storage. Start reading in mpirun_command.py.
"""
