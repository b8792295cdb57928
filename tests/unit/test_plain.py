"""Plain values as bytes and back: the same values, of the same types, and nothing that can run."""

import collections
import contextlib
import os
import pickle
import random
import re
import threading

import ml_dtypes
import numpy as np
import pytest

from matex_tf.storage import plain_encoder

INFINITE = float("inf")


def again(value):
    return plain_encoder.loads(plain_encoder.dumps(value))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -1, 1 << 63, -(1 << 63), -(1 << 5000), 0.1, -0.0, 5e-324, INFINITE, -INFINITE, 1e308),
        *(2 - 3j, complex(0, INFINITE), "", "text ☃ \x00 \ud800", b"", b"\x00\xff", bytes(range(256)) * 9),
        bytearray(b"ab"),
        *([], [1, [2.0, "3"]], (), (1, (2,)), {1, "a"}, frozenset({(1, 2)}), {}, {"a": [1], (1, None): {2: 3}}),
        *(collections.OrderedDict([("b", 1), ("a", 2)]), collections.Counter("aab"), collections.deque([1, 2], 4)),
        collections.defaultdict(list, a=[1]),
        *(np.float32(0.1), np.int8(-3), np.bool_(True), np.str_("a"), np.datetime64("2020-01-01"), np.complex64(1j)),
    ],
    ids=lambda value: type(value).__name__,  # not what is in it: sets are in another order in each process
)
def test_values(value):
    """Each is the same again, and of the same type."""
    found = again(value)
    assert found == value and type(found) is type(value) and repr(found) == repr(value)
    if isinstance(value, (collections.deque, collections.defaultdict)):
        assert getattr(found, "maxlen", 0) == getattr(value, "maxlen", 0)
        assert getattr(found, "default_factory", 0) == getattr(value, "default_factory", 0)


@pytest.mark.parametrize(
    "array",
    [
        *(np.arange(6.0).reshape(2, 3), np.array(3, np.int16), np.zeros((0, 4), np.float16), np.arange(9)[::-2]),
        *(np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(["a", "bcd"]), np.array([b"x"]), np.array([np.nan])),
        np.array([(1, 2.0)], [("a", "i4"), ("b", ">f8")]),
        *(np.array([1.5, -2], ml_dtypes.bfloat16), np.array([1], ml_dtypes.float8_e4m3fn), np.array(["2020"], "M8[D]")),
    ],
    ids=lambda array: f"{array.dtype.name}-{array.shape}",
)
def test_arrays(array):
    """Bytes, dtype and shape stay; what is read can be changed."""
    found = again([array, array[..., :1].copy() if array.ndim else array])[0]
    assert found.dtype == array.dtype and found.shape == array.shape and found.tobytes() == array.tobytes()
    assert found.flags.writeable


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_generators(kind):
    """They go on drawing, and spawn, as the ones that were kept."""
    generator = np.random.Generator(getattr(np.random, kind)(7))
    generator.normal(size=3)
    generator.integers(5, dtype=np.int32)
    found = again({"rng": generator})["rng"]
    assert (found.random(5) == generator.random(5)).all()
    seeds = [one.bit_generator._seed_seq.spawn(1)[0].generate_state(2).tolist() for one in (generator, found)]
    assert seeds[0] == seeds[1]


def test_older_generators():
    """Python's, and NumPy's RandomState, also between the two halves of a pair of normal numbers."""
    old, state = random.Random(3), np.random.RandomState(3)
    old.gauss(0, 1), state.normal()
    found, found_state = again((old, state))
    assert [found.gauss(0, 1) for _ in range(4)] == [old.gauss(0, 1) for _ in range(4)]
    assert (found_state.normal(size=5) == state.normal(size=5)).all()


def test_what_is_one_stays_one():
    """A list in two places, an array in a dict and in a tuple, a generator that two share, a list in itself."""
    both, array, rng, ring = [1], np.zeros(2), np.random.default_rng(1), []
    ring.append({"ring": ring})
    found = again({"a": both, "b": (both, array), "c": array, "d": rng, "e": [rng], "f": ring, "g": [1]})
    assert found["a"] is found["b"][0] and found["c"] is found["b"][1] and found["d"] is found["e"][0]
    assert found["f"][0]["ring"] is found["f"] and found["g"] is not found["a"]


class Odd:
    """No plain value."""


class Number(int):
    """A number that may be more than that."""


@pytest.mark.parametrize(
    "value, what",
    [
        (Odd(), "name is a Odd"),
        ({"a": [1, Odd()]}, r"name\['a'\]\[1\] is a Odd"),
        (threading.Lock(), "name is a lock"),
        (print, "name is a builtin_function_or_method"),
        (Number(3), "name is a Number"),
        (np.ma.masked_array([1]), "name is a MaskedArray"),
        (np.array([Odd()]), "name is an array of Python objects"),
        (collections.defaultdict(lambda: 0), "name is a defaultdict of <lambda>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_plain(value, what):
    """It is refused, with its place; never pickled."""
    assert re.fullmatch(what, plain_encoder.holds(value, "name"))
    with pytest.raises(plain_encoder.NotPlain):
        plain_encoder.dumps(value)


def test_what_is_too_deep():
    """It ends in words."""
    value = []
    for _ in range(5000):
        value = [value]
    assert "nested more than 100 deep" in plain_encoder.holds(value, "name")


def test_names():
    """What stands for something else is made by whoever reads, who knows it or not."""
    odd = Odd()
    data = plain_encoder.dumps([1, odd], lambda value: plain_encoder.Name("odd", {"of": 3}))
    assert plain_encoder.loads(data, lambda name, value: (name, value)) == [1, ("odd", {"of": 3})]
    with pytest.raises(plain_encoder.Malformed, match="names 'odd', which is not known"):
        plain_encoder.loads(data)


def test_what_is_damaged():
    """Whatever the bytes are, they give a plain value or Malformed; also a pickle."""
    data = plain_encoder.dumps({"a": np.arange(3), "b": [1.5, (b"x" * 2000, {2})], "c": np.random.default_rng(1)})
    for size in range(0, len(data), 7):
        with pytest.raises(plain_encoder.Malformed):
            plain_encoder.loads(data[:size])
    for place in range(0, len(data), 3):
        with contextlib.suppress(plain_encoder.Malformed):
            plain_encoder.loads(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])


class Runs:
    """Makes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_does_not_run(tmp_path):
    """Neither in place of plain values nor in an array of Python objects among them."""
    bad = pickle.dumps(Runs(tmp_path / "ran"))
    array = np.empty(1, object)
    array[0] = Runs(tmp_path / "ran")
    text = b'{"ndarray":""}'
    file = tmp_path / "file"
    with open(file, "wb") as writing:
        writing.write(len(text).to_bytes(8, "little") + text)
        np.lib.format.write_array(writing, array, allow_pickle=True)
    for data in (bad, file.read_bytes()):
        with pytest.raises(plain_encoder.Malformed):
            plain_encoder.loads(data)
    assert not (tmp_path / "ran").exists()
    pickle.loads(bad)
    assert (tmp_path / "ran").exists()
