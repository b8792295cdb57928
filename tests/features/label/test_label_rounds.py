"""What goes between the page of `matex-tf label` and its training script: who writes which file, and who reads it."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from matex_tf.features.label import rounds
from matex_tf.features.label.training import Plan, Training


def test_ranks_write_the_same_files(tmp_path, monkeypatch):
    """Another rank may come between a rank's draft and the file that it becomes."""
    from matex_tf.features.label.network import train

    answers, moved, replace = np.eye(3, dtype=np.float32), [], os.replace

    def slow(draft, target):
        if not moved:
            moved.append(draft)
            train.write(str(tmp_path), suggestions=answers)  # the other rank
        replace(draft, target)

    monkeypatch.setattr(os, "replace", slow)
    train.write(str(tmp_path), suggestions=answers)
    assert moved and np.array_equal(np.load(tmp_path / "suggestions.npy"), answers)
    assert os.listdir(tmp_path) == ["suggestions.npy"]


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """Plays a round in which a script writes what a list of steps says, one after each look of the server's; gives
    what is taken as results."""

    def play(steps):
        monkeypatch.chdir(tmp_path)
        found, waiting = [], [{}, *steps]  # before the first look nothing is there
        images = SimpleNamespace(names=["a", "b", "c"])
        training = Training(images, Plan([], []), lambda: ([], {}), lambda state: None, found.append)
        (training._folder / "images.npy").touch()
        place = rounds.name(training._folder, 1)

        def alive():
            if place.exists() and waiting:
                for name, value in waiting.pop(0).items():
                    if name == rounds.DONE:
                        (place / name).touch()
                    else:
                        np.save(place / f"{name}.npy", np.full((3, 2) if name != "disagreement" else 3, value))
                        at = 1_000_000_000 * (100 - len(waiting))  # whatever the clock of a file system tells apart
                        os.utime(place / f"{name}.npy", ns=(at, at))

        training._process = SimpleNamespace(poll=alive)
        training._round(rounds.Task(["x", "y"]), [1, 2], np.array([0, 1, -1]), np.zeros(3, bool))
        training._process = None
        training.stop()
        return found

    return play


def test_answers_are_taken_once(taken):
    """Each rank writes the same: the page makes its map and its queue once."""
    answer = {"features": 0.5, "suggestions": 0.5}
    found = taken([answer, answer, answer, {rounds.DONE: True}])
    assert [(one.number, one.suggestions[0, 0]) for one in found] == [(1, 0.5)]


def test_answers_are_taken_whole(taken):
    """Features of the next suggestions are no part of those before; what comes late is taken when the round is over."""
    found = taken(
        [
            {"features": 0.25, "suggestions": 0.25},
            {"features": 0.5},
            {"disagreement": 0.5},
            {"suggestions": 0.5},
            {"features": 0.75},
            {rounds.DONE: True},
        ]
    )
    values = [(one.features[0, 0], one.suggestions[0, 0]) for one in found]
    assert values == [(0.25, 0.25), (0.5, 0.5), (0.75, 0.5)]
    assert found[0].disagreement is None and found[1].disagreement[0] == 0.5


def test_results_differ():
    """By any of their arrays."""
    one = rounds.Result(1, [1, 2], np.eye(2), np.eye(2), None, False)
    same = rounds.Result(1, [1, 2], np.eye(2), np.eye(2), None, False)
    assert one.same_as(same) and not one.same_as(None)
    for change in ({"suggestions": np.ones((2, 2))}, {"features": None}, {"disagreement": np.ones(2)}):
        assert not one.same_as(rounds.Result(**{**vars(same), **change}))
