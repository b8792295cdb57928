"""Damaged files of every format: rows or a MatexError in few words, the same on one rank and on two.

Never another exception or a read without an end; where the HDF5 library crashes, a line says in which file; and where
the format has a checksum over what is damaged never other rows. `scripts/test --all` damages eight times as many files.
"""

import random
import shutil

import numpy as np
import pytest
from fuzz_files import KINDS, OneRank, damage

from matex_tf.errors import MESSAGE_LENGTH
from tests.support.cases import fuzz

ROUNDS, FILES = 8, 40


@pytest.fixture(scope="module")
def one_rank():
    reader = OneRank()
    yield reader
    reader.close()


@pytest.mark.variants(len(KINDS))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_damaged_files(bare_ranks, one_rank, tmp_path, kind, number):
    """Of each kind."""
    whole, read, files = None, {}, []
    for file in range(FILES + 1):
        directory = tmp_path / f"{file:03}"
        directory.mkdir()
        sample = KINDS[kind](directory)
        content, covered = sample.damaged.read_bytes(), False
        if file:
            new = damage(content, random.Random(f"{kind} {number} {file}"))
            sample.damaged.write_bytes(new)
            low, high = sample.covered(content)
            covered = len(new) == len(content) and new[:low] + new[high:] == content[:low] + content[high:]
        how, result = one_rank.read(sample.path, sample.format)
        what = f"{kind}, round {number}, file {file}"
        assert how in ("rows", "refused", "given up", "ended"), f"{what}: {how}: {result}"
        if file == 0:
            assert how == "rows", result
            whole = result
        if how in ("given up", "ended"):  # by the HDF5 library alone, with a line that names the file
            assert kind.startswith(("netcdf 4", "hdf5")), f"{what}: {result}"
            shutil.rmtree(directory)
            continue
        if how == "refused":
            assert len(result) <= MESSAGE_LENGTH and result.isprintable(), f"{what}: {result!r}"
        elif covered:
            assert alike(result, whole), f"{what}: other rows, although there is a checksum"
        read[what] = how, result
        files.append((str(sample.path), sample.format))
    two = bare_ranks(fuzz.read, (2,), meets="find the files of the data", files=files)[2]
    for place, (what, (how, result)) in enumerate(read.items()):
        parts = [values[place] for values in two]
        if how == "refused":
            assert all(isinstance(part, str) for part in parts), f"{what}: {parts}, and one rank said: {result}"
            assert len(set(parts)) == 1 and len(parts[0]) <= MESSAGE_LENGTH, f"{what}: {parts}"
        else:
            assert not any(isinstance(part, str) for part in parts), f"{what}: {parts}, and one rank has rows"
            assert alike(joined(parts), result), f"{what}: other rows on two ranks"


def joined(parts):
    """The rows of all ranks."""
    return tuple(None if one[0] is None else np.concatenate(one) for one in zip(*parts, strict=True))


def alike(some, others):
    return all(
        (a is None and b is None)
        or (a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
        for a, b in zip(some, others, strict=True)
    )
