"""Callbacks decide alike on all ranks; files are written once, by one rank, and all can read them."""

import numpy as np
import pytest
from compare import same

from tests.support.cases import callbacks
from tests.support.installed import KERAS

CHECKPOINTS = {
    "whole models": {"filepath": "sub/{epoch:02d}-{val_loss:.3f}.keras"},
    "every seven batches": {"filepath": "{epoch:02d}.{batch:04d}.weights.h5", "save_weights_only": True,
                            "save_freq": 7},
    "the best": {"filepath": "best.keras", "save_best_only": True, "monitor": "val_accuracy", "mode": "max"},
    "weights only": {"filepath": "{epoch:02d}.weights.h5", "save_weights_only": True},
}  # fmt: skip


def written_once(results):
    """Rank 0 wrote what the one rank of size 1 wrote, the others nothing; gives the results."""
    for size, values in results.items():
        counts = [value["writes"] for value in values]
        assert counts == [results[1][0]["writes"]] + [0] * (size - 1), f"files opened for writing, by rank: {counts}"
    assert results[1][0]["writes"] > 0
    return {size: [value["result"] for value in values] for size, values in results.items()}


@pytest.mark.smoke
def test_early_stopping(ranks):
    """All stop after the same epoch, with the best weights of one rank."""
    reference = same(ranks(callbacks.early_stopping, (1, 3)))
    assert 0 < reference["stopped"] < 19
    assert reference["best"] < reference["stopped"]


@pytest.mark.variants(0)
def test_reduce_on_plateau(ranks):
    """The learning rate is lowered when it would be on one rank."""
    reference = same(ranks(callbacks.plateau))
    assert len(set(reference["history"]["learning_rate"])) > 1


@pytest.mark.variants(1)
@pytest.mark.parametrize("case", [callbacks.scheduler, callbacks.lambdas, callbacks.swap_ema])
def test_callback(ranks, case):
    """Callbacks that read logs and set the learning rate or the weights."""
    same(ranks(case))


def test_terminate_on_nan(ranks):
    """A loss that is not a number on one rank stops all, after the same batch as on one rank."""
    reference = same(ranks(callbacks.not_a_number, (1, 3)))
    assert reference["batches"] == [["epoch", 0], ["batch", 0], ["batch", 1], ["batch", 2]]


@pytest.mark.variants(1)
@pytest.mark.parametrize("when", ["epoch", "batch"])
def test_stop_training_on_one_rank(ranks, when):
    """`stop_training` set on one rank stops all, after the same batch."""
    reference = same(ranks(callbacks.stops_on_one_rank, (1, 3), when=when))
    assert reference["batches"].count(["epoch", 0]) == 1
    if when == "epoch":
        assert reference["epochs"] == [0, 1]
    else:
        assert reference["batches"][-1] == ["batch", 2]


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoint(ranks, name):
    """Each way of ModelCheckpoint: the files of one rank, written by one, read by all."""
    reference = same(written_once(ranks(callbacks.checkpoint, **CHECKPOINTS[name])))
    assert reference["files"]


@pytest.mark.variants(1)
@pytest.mark.parametrize("save_freq", ["epoch", 3])
def test_backup_and_restore(ranks, save_freq):
    """A training that breaks off goes on where it was, on every rank; the backup is removed at the end."""
    reference = same(written_once(ranks(callbacks.backup, save_freq=save_freq)))
    assert reference["found"][0] and not reference["found"][1]
    assert ["epoch", 0] not in reference["epochs"]


def test_csv_logger(ranks):
    """One table, with the numbers of one rank."""
    reference = same(written_once(ranks(callbacks.csv_logger)))
    assert [row["epoch"] for row in reference["rows"]] == [0, 1, 2, 0, 1]


def test_tensorboard(ranks):
    """One event file for training and one for validation, with the numbers of one rank."""
    reference = same(ranks(callbacks.tensorboard))
    assert reference["count"] == {"train": 1, "validation": 1}
    assert len(reference["scalars"]) >= 8


@pytest.mark.variants(0)
def test_tensorboard_embeddings(ranks):
    """The weights that TensorBoard saves inside of a callback: those of one rank, written by one."""
    pytest.importorskip("tensorboard.plugins.projector", reason="Keras needs it to show embeddings")
    reference = same(written_once(ranks(callbacks.embeddings)))
    assert reference["found"] and "board/train/keras_embedding.ckpt-0.weights.h5" in reference["names"]


@pytest.mark.smoke
def test_saving(ranks):
    """`save`, `save_weights` and `export`: there when the call returns, whole, and the same when read."""
    reference = same(written_once(ranks(callbacks.saving)))
    assert all(reference["seen"])


@pytest.mark.variants(0)
def test_orbax(ranks):
    """Rank 0 decides and writes, also in the background; the others wait, and find it under a path of their own."""
    if KERAS < (3, 14):
        pytest.skip("keras.callbacks.OrbaxCheckpoint came with Keras 3.14")
    reference = same(ranks(callbacks.orbax))
    often, best = reference["found"]
    assert sorted(map(int, often)) == list(range(2, 16, 2)) and "8" in best and "9" not in best
    saved, trained = (sorted(weights, key=np.shape) for weights in (best["2"], reference["trained"]))
    assert all((one == two).all() for one, two in zip(saved, trained, strict=True))


def test_saving_where_that_is_impossible(ranks):
    """Rank 0's error is every rank's error."""
    reference = same(ranks(callbacks.save_fails, meets=""))
    assert "saved" not in reference and "MatexError" not in reference


def test_a_disk_that_is_full(ranks):
    """Every rank hears of it, the files of before are as they were, and nothing is left beside them."""
    for errors, kept, left in ranks(callbacks.no_room, (2,), meets="")[2]:
        assert errors == ["OSError", "OSError"], errors
        assert kept == {"a.keras": True, "b.keras": True} and left == sorted(kept)
