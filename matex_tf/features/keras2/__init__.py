"""Keras 2, as tf_keras: its fit loop, optimizers, losses, metrics, layers and callbacks.

It may import core, exchange, strategies and patches, whose rooms serve any Keras. Start reading in trainer.py.
"""

from matex_tf.features import Feature


def register() -> Feature:
    """What this feature adds."""
    here = "matex_tf.features.keras2"
    return Feature(
        patches=(
            ("tf_keras.src.engine.training", f"{here}.trainer"),
            ("tf_keras.src.engine.data_adapter", f"{here}.data"),
            ("tf_keras.src.utils.data_utils", f"{here}.sequences"),
            ("tf_keras.src.optimizers.optimizer", f"{here}.optimizers"),
            ("tf_keras.src.optimizers.legacy.optimizer_v2", f"{here}.optimizers"),
            ("tf_keras.src.mixed_precision.loss_scale_optimizer", f"{here}.optimizers"),
            ("tf_keras.src.optimizers.optimizer_v1", f"{here}.optimizers"),
            ("tf_keras.src.layers.normalization.batch_normalization", f"{here}.batch_norm"),
        ),
        facts=f"{here}.facts:FACTS",
        package="matex_tf",
    )
