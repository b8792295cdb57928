"""What `horovod.runner.common.util.env` gives, as far as scripts ask for it."""

from __future__ import annotations

from matex_tf.core import world


def get_env_rank_and_size() -> tuple[int, int]:
    """This rank, and how many there are; also before `hvd.init`."""
    ranks = world.init()
    return ranks.rank, ranks.size
