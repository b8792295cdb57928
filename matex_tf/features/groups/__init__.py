"""Groups of ranks that train apart: `--strategy local`, `elastic` and `server`, and groups that join a running job.

It may import core, exchange, strategies, planning (for types), patches, groups.center and groups.patches.
Start reading in apart.py.
"""

from matex_tf.features import Feature


def register() -> Feature:
    """What this feature adds."""
    here = "matex_tf.features.groups"
    return Feature(
        settings=f"{here}.options:GroupOptions",
        strategies={
            "local": f"{here}.local:Local",
            "elastic": f"{here}.elastic:Elastic",
            "server": f"{here}.server:Server",
        },
        patches=(("keras.src.backend.tensorflow.trainer", f"{here}.patches.joined_fit"),),
        joins=f"{here}.options:to_join",
        package="matex_tf",
    )
