"""Names of TensorFlow 1 that sessions rest on; see `matex_tf.facts`."""

from __future__ import annotations

from matex_tf.facts.fact import Fact

FACTS = (
    Fact("tensorflow.python.summary.writer.event_file_writer", "EventFileWriter",
         "add_event flush close reopen", "rank 0 writes"),
    Fact("tensorflow.python.training.saver", "Saver", "_last_checkpoints", "rank 0 writes"),
    Fact("tensorflow", "compat.v1.train.Saver", "save restore", "rank 0 writes"),
    Fact("tensorflow", "compat.v1.train.SessionManager", "prepare_session", "rank 0 writes"),
    Fact("tensorflow", "compat.v1.train.CheckpointSaverHook", "_save after_create_session", "rank 0 writes"),
    Fact("tensorflow", "compat.v1.train.Optimizer", "compute_gradients apply_gradients",
         "gradients of sessions are exchanged"),
    Fact("tensorflow", "compat.v1.Session|compat.v1.InteractiveSession", "__init__ run", "feeds are shared out"),
)  # fmt: skip
