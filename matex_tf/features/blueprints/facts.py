"""Names of Keras that blueprints rest on; see `matex_tf.facts`."""

from __future__ import annotations

from matex_tf.facts.fact import Fact

FACTS = (
    Fact("keras.src.models.sequential", "Sequential", "from_config", "layers of a candidate"),
    Fact("keras.src.saving.serialization_lib", "", "deserialize_keras_object", "candidates of a blueprint"),
    Fact("keras.src.utils.naming", "", "to_snake_case", "names of layers of a candidate"),
)
