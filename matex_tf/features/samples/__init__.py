"""`--prune-samples`: rows that a network knows already are left out of epochs, and each row's score is kept.

It may import core, storage, patches and samples.patches. Start reading in scoring.py.
"""

from matex_tf.features import Feature


def register() -> Feature:
    """What this feature adds."""
    hooks = "matex_tf.features.samples.patches"
    return Feature(
        settings="matex_tf.features.samples.options:SampleOptions",
        pages={"samples": "docs/samples.md"},
        patches=(
            ("keras.src.backend.tensorflow.trainer", f"{hooks}.pruned_fit"),
            ("keras.src.callbacks.callback_list", f"{hooks}.pruned_fit"),
            ("keras.src.losses.loss", f"{hooks}.row_losses"),
            ("keras.src.trainers.compile_utils", f"{hooks}.row_losses"),
            ("keras.src.optimizers.base_optimizer", f"{hooks}.schedules"),
        ),
        step_parts=(f"{hooks}.scored_steps:Scores",),
        facts="matex_tf.features.samples.facts:FACTS",
        package="matex_tf",
    )
