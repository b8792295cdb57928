"""Which ranks make which group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matex_tf.errors import SettingError
from matex_tf.features.groups.membership import parse

HOSTS = ["a", "b", "a", "b"]


def test_ways_to_say_it():
    assert parse("", HOSTS) == [[0], [1], [2], [3]]
    assert parse("1", HOSTS) == [[0, 1, 2, 3]]
    assert parse("2", HOSTS) == [[0, 1], [2, 3]]
    assert parse("host", HOSTS) == [[0, 2], [1, 3]]
    assert parse("0-1,3/2", HOSTS) == [[0, 1, 3], [2]]


@given(st.integers(1, 40), st.integers(1, 40))
def test_numbers(size, count):
    """Groups of a number are contiguous, and differ by one rank at most."""
    if count > size:
        with pytest.raises(SettingError, match=f"there are {size} ranks"):
            parse(str(count), ["a"] * size)
        return
    groups = parse(str(count), ["a"] * size)
    assert sum(groups, []) == list(range(size))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("0-1/1-3", "1 is in it twice"),
        ("0-2", "3 is not"),
        ("0-3/4", "there is no 4"),
        ("3-0", "a number, host"),
        ("hosts", "a number, host"),
        ("0", "1 is not"),
    ],
)
def test_refused(text, word):
    with pytest.raises(SettingError, match=word):
        parse(text, HOSTS)
