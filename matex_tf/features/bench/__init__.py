"""`matex-tf bench allreduce`: how fast sums over ranks are on a machine or cluster, beside MPI's and the limit.

It may import core, exchange, launch, job, settings and storage. Start reading in command.py.
"""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    text = "measure the exchange on this machine or cluster: matex-tf bench allreduce"
    return Feature({"bench": Command(text, "matex_tf.features.bench.command", True)}, package="matex_tf")
