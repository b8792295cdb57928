"""Callbacks that write logs, where the rank that has written them dies: the next one begins where that has ended."""

from __future__ import annotations

import pytest

from matex_tf.patches.saving import log_callbacks, model_files


class Logger:
    """As CSVLogger and TensorBoard are."""

    def __init__(self):
        self.append, self.did = False, []

    def set_model(self, model):
        self.did.append(f"set {model}")

    def on_train_begin(self, logs=None):
        self.did.append("begin again" if self.append else "begin")

    def on_epoch_end(self, epoch):
        self.did.append(epoch)


@pytest.fixture
def ranks(monkeypatch):
    """Whether this rank is the first: `is_first` of the result."""

    class Ranks:
        is_first = False

    monkeypatch.setattr(model_files, "writes", lambda: Ranks.is_first)
    return Ranks


def call(logger, name, *words):
    log_callbacks._on_rank_0(getattr(logger, name), logger, words, {})


def test_in_a_training(ranks):
    """What was left out at its beginning is done before the first epoch that this rank writes, once."""
    logger = Logger()
    call(logger, "set_model", "m"), call(logger, "on_train_begin"), call(logger, "on_epoch_end", 0)
    assert logger.did == []
    ranks.is_first = True
    call(logger, "on_epoch_end", 1), call(logger, "on_epoch_end", 2)
    assert logger.did == ["set m", "begin again", 1, 2]


def test_between_trainings(ranks):
    """A training that this rank begins as the first one begins as on one rank, whatever it has left out before."""
    logger = Logger()
    call(logger, "set_model", "m"), call(logger, "on_train_begin")
    ranks.is_first = True
    call(logger, "set_model", "n"), call(logger, "on_train_begin"), call(logger, "on_epoch_end", 0)
    assert logger.did == ["set n", "begin", 0]


def test_as_it_begins(ranks):
    """The first rank may die between the two calls with which a training begins."""
    logger = Logger()
    call(logger, "set_model", "m")
    ranks.is_first = True
    call(logger, "on_train_begin"), call(logger, "on_epoch_end", 0)
    assert logger.did == ["set m", "begin again", 0]
