"""A script as one rank of a job: how it is run, and how the job ends on all ranks together.

It may import all that a rank needs: core, launch, faults, patches. Start reading in run.py.
"""
