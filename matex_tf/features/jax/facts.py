"""Names of Keras on JAX; see `matex_tf.facts`."""

from __future__ import annotations

from matex_tf.facts.fact import Fact

FACTS = (
    Fact("keras.src.backend.jax.trainer", "", "jit", "a step is compiled for all ranks", since="3.12"),
    Fact("keras.src.backend.jax.trainer", "JAXTrainer",
         "make_train_function make_test_function make_predict_function fit evaluate predict train_on_batch "
         "test_on_batch predict_on_batch", "where ranks meet", since="3.12"),
    Fact("keras.src.backend.jax.trainer", "JAXTrainer", "jax_state_sync", "variables get a rank's own arrays",
         since="3.12"),
    Fact("keras.src.backend.jax.trainer", "*", "_jax_state", "what variables get", since="3.12"),
    Fact("keras.src.backend.jax.trainer", "JAXEpochIterator", "__init__ _get_iterator", "batches of one rank",
         since="3.12"),
    Fact("keras.src.backend.jax.trainer", "JAXTrainer", "_get_state_sharding_spec", "the layouts of a step's state",
         since="3.12"),
    Fact("keras.src.backend.jax.distribution_lib", "",
         "distribute_tensor distribute_data_input initialize num_processes process_id", "a script sees one process",
         since="3.12"),
    Fact("keras.src.backend.jax.distribution_lib", "", "distribute_variable", "variables are whole between steps",
         before="3.15", optional=True),
    Fact("keras.src.backend.jax.core", "JaxVariable", "_initialize_layout _initialize_with_initializer",
         "variables begin whole", since="3.13", optional=True),
    Fact("keras.src.backend.jax.core", "", "KerasVariable device_scope", "variables and devices are a rank's own",
         since="3.12"),
)  # fmt: skip
