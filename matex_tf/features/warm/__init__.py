"""`--warm-imports`: one process of a node imports what its ranks need, and forks them.

What a launcher has started as a rank (`imports`) finds or starts the server of its node (`meeting_point`), tells it all
that a process has of where it was started (`process`), and from then on stands in for the process that the server forks
(`stand_in`): hands on signals, ends as it ends, and takes it along when it is killed. Of the standard library alone, so
that it starts quickly. It may import core, storage, launch, job and patches. Start reading in server.py.
"""

from matex_tf.features import Feature


def register() -> Feature:
    """What this feature adds."""
    return Feature(
        settings="matex_tf.features.warm.options:WarmOptions",
        pages={"warm": "docs/launcher.md"},
        enters=("matex_tf.features.warm.imports:enter",),
        package="matex_tf",
    )
