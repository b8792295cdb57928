"""Notes beside objects that are not ours: by identity, one of a class, for as long as the object lives."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import tensorflow as tf

from matex_tf.state import notes


class Seen(list):
    """A note."""


class Other:
    """Another one."""


class Alike:
    """Equal to every other one, and without a hash."""

    def __eq__(self, other):
        return True


def test_one_of_a_class():
    one, other = Alike(), Alike()
    notes.of(one, Seen).append(1)
    assert notes.of(one, Seen) == [1] and notes.of(other, Seen) == []
    assert notes.found(one, Other) is None
    notes.put(one, mark := Other())
    assert notes.found(one, Other) is mark and notes.drop(one, Other) is mark
    assert notes.found(one, Other) is None and notes.drop(one, Other) is None and notes.of(one, Seen) == [1]


@pytest.mark.parametrize("make", [Alike, lambda: np.zeros(2)], ids=["object", "array"])
def test_as_long_as_it_lives(make):
    one = make()
    notes.put(one, Other())
    assert any(found is one for found in notes.having(Other)) and notes._all[Other]
    del one
    gc.collect()
    assert not notes._all[Other]


def test_not_on_it():
    """A copy has none, and nothing of them is in a pickle."""
    one = Alike()
    notes.put(one, Other())
    assert not vars(one) and b"Other" not in pickle.dumps(one)
    assert notes.found(copy.copy(one), Other) is None


class Held(notes.Inside):
    """A note that may hold its object."""

    def __init__(self, one=None):
        self.one = one


@pytest.mark.parametrize("make", [Alike, tf.Graph, lambda: tf.constant(1.0), lambda: lambda: None])
def test_inside(make):
    one = make()
    notes.put(one, held := Held(one))
    assert notes.found(one, Held) is held and notes.of(one, Held) is held and not notes.having(Held)
    assert notes.drop(one, Held) is held and not notes.has(one, Held)
    assert not notes.has(None, Held) and not notes.has(object(), Held)


def test_inside_does_not_keep_its_object_alive():
    one = Alike()
    notes.put(one, Held(one))
    alive = weakref.ref(one)
    del one
    gc.collect()
    assert alive() is None


def test_copies_have_what_is_inside():
    """And a change of one is none of the other; a pickle has nothing of it."""
    one = Alike()
    notes.put(one, held := Held())
    other = copy.copy(one)
    assert notes.found(other, Held) is held
    notes.put(other, Held())
    assert notes.found(one, Held) is held
    packed = pickle.dumps(one)
    assert b"Held" not in packed and b"matex_tf" not in packed and not notes.has(pickle.loads(packed), Held)


def test_keep():
    one, other = Alike(), Alike()
    alive = weakref.ref(other)
    notes.keep(one, other)
    del other
    gc.collect()
    assert alive() is not None
    del one
    gc.collect()
    assert alive() is None


def test_having():
    first, second = Alike(), Alike()
    for one in (first, second, first):
        notes.put(one, Other())
    found = notes.having(Other)
    assert found[0] is second and found[1] is first and len(found) == 2
    assert notes.having(Alike) == []
    notes.clear(Other)
    assert notes.having(Other) == [] and not notes.has(first, Other)


def test_an_id_that_is_free_again():
    """What comes to lie where another object lay has none of its notes."""
    for _ in range(1000):
        one = Alike()
        assert notes.found(one, Seen) is None
        notes.of(one, Seen).append(1)
        one.itself = one  # a circle, which is found in time
    gc.collect()
