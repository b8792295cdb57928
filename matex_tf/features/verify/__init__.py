"""`matex-tf verify`: what a training has computed, in files, and how far two trainings are apart.

It may import core, storage, planning, launch, job and verify.patches. Start reading in record.py.
"""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    text = "compare a training on N ranks with that on one: matex-tf verify -n 4 train.py"
    hooks = "matex_tf.features.verify.patches"
    return Feature(
        {"verify": Command(text, "matex_tf.features.verify.command", True)},
        recording=(
            ("keras.src.callbacks.callback_list", f"{hooks}.recorder"),
            ("keras.src.backend.tensorflow.trainer", f"{hooks}.recorder"),
            ("keras.src.backend.jax.trainer", f"{hooks}.recorder"),
            ("keras.src.optimizers.base_optimizer", f"{hooks}.own_loops"),
            ("tf_keras.src.callbacks", f"{hooks}.keras2"),
            ("tf_keras.src.engine.training", f"{hooks}.keras2"),
            ("tf_keras.src.optimizers.optimizer", f"{hooks}.keras2"),
            ("tf_keras.src.optimizers.legacy.optimizer_v2", f"{hooks}.keras2"),
            ("tf_keras.src.mixed_precision.loss_scale_optimizer", f"{hooks}.keras2"),
        ),
        any_backend=(f"{hooks}.recorder",),
        package="matex_tf",
    )
