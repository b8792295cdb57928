"""A rank dies in `fit`: the step is run again, or the script goes on where the job before it was.

It may import patches.common, patches.data, patches.shards and faults. Start reading in step_retry.py.
"""
