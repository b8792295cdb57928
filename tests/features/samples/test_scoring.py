"""Scores of rows, and who is left out, without ranks and without TensorFlow."""

import numpy as np
import pytest

from matex_tf.core.world import World
from matex_tf.errors import DataError, SettingError
from matex_tf.features.label import scores
from matex_tf.features.label.board import Board
from matex_tf.features.label.images import open_images
from matex_tf.features.label.store import Store
from matex_tf.features.samples import score_files, scoring
from matex_tf.settings import Settings


def test_who_is_left_out():
    """Of rows below the mean so many, of others none; the sum of weights stays what it was, in expectation."""
    scores = np.random.RandomState(0).exponential(size=200_000).astype("float32")
    for rate in (0.3, 0.75):
        epoch = scoring.choose(scores, rate, seed=1, epoch=2)
        below = scores < scores.mean()
        assert (epoch.codes[~below] == scoring.USED).all()
        assert abs((epoch.codes[below] == scoring.LEFT_OUT).mean() - rate) < 0.005
        weights = np.array([0, 1, epoch.scale])[epoch.codes]
        assert abs(weights.sum() / len(scores) - 1) < 0.005
        assert epoch.used == (weights > 0).sum() and epoch.log_factor == pytest.approx(epoch.used / weights.sum())


def test_at_random():
    """As many, but any of them."""
    scores = np.random.RandomState(0).exponential(size=200_000).astype("float32")
    by_loss, at_random = (scoring.choose(scores, 0.5, 1, 2, at_random=so) for so in (False, True))
    assert abs(by_loss.used - at_random.used) < 0.005 * len(scores)
    hard = scores > scores.mean()
    assert (at_random.codes[hard] == scoring.LEFT_OUT).mean() == pytest.approx(
        1 - at_random.used / len(scores), abs=0.01
    )


def test_draws():
    """Even, other ones in each epoch and for each seed, and the same for the same."""
    rows = np.arange(100_000, dtype=np.uint64)
    first = scoring.uniform(rows, 3, 1)
    np.testing.assert_array_equal(first, scoring.uniform(rows, 3, 1))
    assert first.min() >= 0 and first.max() < 1 and abs(first.mean() - 0.5) < 0.005
    for other in (scoring.uniform(rows, 3, 2), scoring.uniform(rows, 4, 1), first[::-1]):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.02


def test_tags():
    """Each row that is used once, marked where its gradient is scaled; in another order in each epoch."""
    codes = np.array([scoring.USED, scoring.LEFT_OUT, scoring.SCALED] * 100, np.int8)
    assert scoring.tags(codes, None)[:4].tolist() == [0, -3, 3, -6]
    orders = [scoring.tags(codes, (5, epoch)) for epoch in (1, 2)]
    for order in orders:
        assert order.dtype == np.int64 and sorted(order) == sorted(scoring.tags(codes, None))
    assert (orders[0] != orders[1]).any() and (orders[0] == scoring.tags(codes, (5, 1))).all()


def test_rows_without_scores_are_used():
    scores = np.array([np.nan, 0.0, 0.0, 9.0], np.float32)
    for epoch in range(50):
        codes = scoring.choose(scores, 0.9, 0, epoch).codes
        assert codes[0] == codes[3] == scoring.USED
    assert scoring.choose(np.full(4, np.nan, np.float32), 0.9, 0, 0).used == 4


def test_scores():
    """The last one counts; a row that was not seen, or whose loss is not finite, keeps its own."""
    table = scoring.SampleScores(5)
    table.note(np.array([0, 1, 2]), np.array([1.0, 2.0, np.inf]))
    table.merge(World())
    table.note(np.array([1, 4]), np.array([7.0, 0.5]))
    kept = table.state()
    table.merge(World())
    np.testing.assert_array_equal(table.scores, np.array([1, 7, np.nan, np.nan, 0.5], np.float32))
    np.testing.assert_array_equal(table.used, [1, 2, 0, 0, 1])
    again = scoring.SampleScores(5)
    again.restore(kept, fresh=True)
    again.merge(World())
    np.testing.assert_array_equal(again.scores, table.scores)


def test_forgetting():
    """Right and then wrong counts; so does each time for a row that was never right."""
    table = scoring.SampleScores(4, forgetting=True)
    for right in ([1, 0, 1, 0], [1, 0, 0, 1], [1, 0, 1, 1], [1, 0, 0, 0]):
        table.note(np.arange(4), np.array(right, np.float32))
        table.merge(World())
    np.testing.assert_array_equal(table.scores, [0, 4, 2, 2])


def test_memory():
    """At most 20 bytes a row, with what an epoch has."""
    table = scoring.SampleScores(1_000_000, forgetting=True)
    table.note(np.arange(1_000_000), np.random.RandomState(0).rand(1_000_000))
    table.merge(World())
    epoch = scoring.choose(table.scores, 0.5, 0, 1)
    assert table.nbytes + epoch.codes.nbytes <= 12_000_000


def test_files(tmp_path):
    """A line for each row; a picture where rows are images."""
    path, scores = tmp_path / "deep" / "scores.csv", np.array([0.5, np.nan, 2, 1], np.float32)
    score_files.write_table(str(path), scores, np.array([3, 0, 4, 1]))
    assert path.read_text().split() == ["row,score,used", "0,0.5,3", "1,,0", "2,2,4", "3,1,1"]
    hard, easy = score_files.extremes(scores)
    assert [*hard] == [2, 3, 0] and [*easy] == [0, 3, 2]
    images = {row: np.random.RandomState(row).rand(8, 8, 3) for row in range(4)}
    assert score_files.draw(str(path), (hard, easy), scores, images, "loss") == str(path.with_suffix(".png"))
    assert path.with_suffix(".png").stat().st_size > 1000
    assert score_files.is_image((8, 8)) and not score_files.is_image((6,)) and not score_files.is_image((8, 8, 5))
    assert [score_files.numbered("a.csv", fit) for fit in (1, 2)] == ["a.csv", "a-2.csv"]


@pytest.mark.parametrize(
    "given",
    [
        {"prune_samples": "1"},
        {"prune_samples_until": "1.5"},
        {"prune_samples": "0.5", "strategy": "elastic"},
        {"prune_samples": "0.5", "strategy": "server"},
        {"sample_scores": "scores.csv", "strategy": "local", "groups": "2"},
        {"prune_samples": "0.5", "shard": "state"},
        {"prune_samples": "0.5", "transport": "horovod"},
        {"sample_scores": "scores.csv", "transport": "horovod"},
    ],
)
def test_settings(given):
    with pytest.raises(SettingError, match="--prune-samples|--sample-scores"):
        Settings.read(given, {})


def test_what_one_rank_needs():
    """`matex-tf verify` gives one rank what changes what it computes, of each feature, and no file to write."""
    given = {"prune_samples": "0.5", "sample_scores": "a.csv", "seed": "1", "apoptosis": "on", "pipe_width": "2"}
    passed = Settings.read(given, {}).of_one_rank()
    assert {"prune_samples", "prune_samples_until", "apoptosis"} < set(passed)
    assert not {"sample_scores", "seed", "pipe_width"} & set(passed)


def test_hardest_first(tmp_path):
    """People are asked about the rows first that a training found hardest, by the file that it wrote of its rows."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 255, (5, 8, 8), np.uint8))
    images = open_images(str(tmp_path / "x.npy"))
    path = tmp_path / "scores.csv"
    score_files.write_table(str(path), np.array([0.1, 2.0, np.nan, 0.5, 7.0], np.float32), np.arange(5))
    store = Store(str(tmp_path / "l.sqlite"), images.names)
    store.new_group("ann", "water")
    board = Board(store, images, "scores", given=scores.read(str(path), 5))
    assert board.snapshot()["queue"] == [4, 1, 3, 0, 2] and board.snapshot()["asks"][-1] == "scores"
    board.act("ann", lambda: store.assign("ann", [4], 1))
    board.choose("random")
    assert set(board.snapshot()["queue"]) == {0, 1, 2, 3}
    board.choose("scores")
    assert board.snapshot()["queue"] == [1, 3, 0, 2]
    with pytest.raises(SettingError, match="margin"):
        Board(store, images).choose("scores")
    store.close()
    for text, message in (
        ("a,b\n", "does not begin"),
        ("row,score,used\n0,much,1\n", "line 2"),
        ("row,score,used\n5,1,1\n", "row 5"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            scores.read(str(path), 5)
    with pytest.raises(DataError, match="cannot be read"):
        scores.read(str(tmp_path / "none.csv"), 5)
