"""`matex-tf top` and `--metrics`: a running job in a terminal, and in Prometheus.

It may import core, watching, job and settings. Start reading in view.py.
"""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    return Feature(
        {"top": Command("show a running job, live: matex-tf top", "matex_tf.features.watch.command")},
        settings="matex_tf.features.watch.options:WatchOptions",
        pages={"watch": "docs/watching.md"},
        shows=("matex_tf.features.watch.prometheus:begin",),
        package="matex_tf[metrics]",
    )
