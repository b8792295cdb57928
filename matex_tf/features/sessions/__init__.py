"""Scripts in the style of TensorFlow 1: graphs and sessions.

- `graph_state`: what is known of a graph, and of the run of it that is under way.
- `feed_share`: which part of a batch a run of a session works on.
- `exchange_order`: exchanges of one run come in the same order on every rank.
- `updates`: optimizers of tf.compat.v1.
- `session_run`: `Session.run`: feeds are shared out, fetches are those of the whole batch.
- `variables`: rank 0's values, wherever they are initialized or restored.
- `files`: savers, checkpoints of monitored sessions and event files are written once.

It may import core, exchange and patches. Start reading in session_run.py.
"""

from matex_tf.features import Feature


def register() -> Feature:
    """What this feature adds."""
    here = "matex_tf.features.sessions"
    return Feature(
        patches=tuple(("tensorflow", f"{here}.{one}") for one in ("updates", "session_run", "files")),
        facts=f"{here}.facts:FACTS",
        package="matex_tf",
    )
