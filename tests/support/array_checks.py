"""What the tests of readers of arrays have in common: shards joined are the file, and what must be refused is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from array_files import Sample

from tests.support.cases import readers_arrays

SIZES = (1, 2, 3, 4)


def asked(samples: Sequence[Sample]) -> list[tuple[list[str], str | None, dict[str, Any]]]:
    """The samples as a case takes them."""
    return [(sample.paths, sample.format, sample.wanted) for sample in samples]


def check_shards(samples: Sequence[Sample], ranks: Any, seven: Any) -> None:
    """On 1, 2, 3, 4 and 7 ranks the ranks' rows, one behind the other, are the file."""
    assert len({sample.name for sample in samples}) == len(samples) > 0
    results = ranks(readers_arrays.shards, SIZES, meets="open", samples=asked(samples))
    results |= seven(readers_arrays.shards, (7,), meets="open", samples=asked(samples))
    assert set(results) == {*SIZES, 7}
    for size, values in results.items():
        for number, sample in enumerate(samples):
            parts = [value[number] for value in values]
            what = f"{sample.name} on {size} ranks"
            total = len(sample.x[0] if isinstance(sample.x, tuple) else sample.x)
            assert [part[2] for part in parts] == [total] * size, what
            joined([part[0] for part in parts], sample.x, f"{what}, inputs")
            joined([part[1] for part in parts], sample.y, f"{what}, labels")


def joined(parts: list[Any], expected: Any, what: str) -> None:
    """Parts of ranks make up the whole, with its dtype, and each is its share."""
    if expected is None:
        assert parts == [None] * len(parts), what
    elif isinstance(expected, tuple):
        assert all(isinstance(part, tuple) and len(part) == len(expected) for part in parts), what
        for number, one in enumerate(expected):
            joined([part[number] for part in parts], one, f"{what} {number}")
    else:
        assert {part.dtype for part in parts} == {expected.dtype.newbyteorder("=")}, what
        lengths = [len(part) for part in parts]
        assert max(lengths) - min(lengths) <= 1, what
        np.testing.assert_array_equal(np.concatenate(parts), expected, err_msg=what)


def check_refused(cases: dict[str, tuple[Any, list[str]]], ranks: Any, sizes: Sequence[int] = (1, 3)) -> None:
    """Every rank refuses each table with the same message, in which certain words are.

    Args:
        cases: by name: what is opened (paths, format, wanted), and the words.
    """
    results = ranks(readers_arrays.refusals, sizes, meets="data", samples=[opened for opened, _ in cases.values()])
    for size, values in results.items():
        for number, (name, (_, words)) in enumerate(cases.items()):
            messages = {value[number] for value in values}
            assert len(messages) == 1 and None not in messages, f"{name} on {size}: {messages}"
            (message,) = messages
            assert all(word in message for word in words), f"{name}: {words} should be in: {message}"


def check_changes(write: Any, ranks: Any, directory: Path) -> None:
    """A file that changes between opening and reading is an error on every rank, whatever became of it."""
    for how in ("cut", "gone", "longer"):
        for size in (1, 3):
            paths = write(directory / f"{how}{size}")
            for messages in ranks(readers_arrays.changed, (size,), meets="open", paths=paths, how=how)[size]:
                for path, message in zip(paths, messages, strict=True):
                    assert message and path in message, (how, path, message)
                    assert "changed" in message or "no such file" in message or "not whole" in message, (how, message)


def check_bytes(
    samples: Sequence[Sample], warm: Sequence[Sample], ranks: Any, opening: int = 0, times: int = 1
) -> None:
    """A rank reads its share of the bytes of a file, and 5 % of that more at most.

    Args:
        samples: the files; warm: what to read before anything is counted.
        opening: bytes that a library reads each time that it opens a file: once to look into it, and once to read.
        times: how often it is read: twice where its checksum is compared.
    """
    results = ranks(readers_arrays.bytes_read, (1, 2, 4), meets="open", samples=asked(samples), warm=asked(warm))
    for size, values in results.items():
        for number, sample in enumerate(samples):
            length = sum(Path(path).stat().st_size for path in sample.paths)
            for rank, value in enumerate(values):
                share = (value[number] - 2 * opening) / length * size / times
                assert 0.5 < share < 1.05, f"{sample.name}: rank {rank} of {size} read {share:.3f} of its part"


def check_damage(kind: str, seconds: float, directory: Path) -> None:
    """Every cut and flip of bytes of files of a kind ends in rows or in a DataError."""
    here = Path(__file__).parent
    command = [sys.executable, str(here / "flips.py"), kind, str(seconds), "1", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and lines, f"{done.stdout}\n{done.stderr[-5000:]}"
    assert not lines[:-1], "\n".join(lines[:-1])
    assert lines[-1]["refused"] > 10 and lines[-1]["rows"] > 10, lines[-1]
