"""Parquet files: the parts of all ranks together are the file, as pandas reads it; what is wrong is named."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threads import on_threads

from matex_tf.core import row_partition
from matex_tf.core.world import World
from matex_tf.errors import DataError
from matex_tf.features.parquet import table as parquet
from matex_tf.readers.formats import registry
from matex_tf.readers.tables.table import ReadOptions
from tests.readers.test_dataset_lines import line
from tests.support.cases import tables as tables_cases

SIZES = (1, 2, 3, 4)
ROWS = 203


def frame(rows=ROWS, seed=1):
    """Columns of every sort that can be read."""
    random = np.random.default_rng(seed)
    table = pd.DataFrame({"a": random.normal(size=rows), "b": random.integers(-5, 100, rows)})
    table["half"] = random.normal(size=rows).astype("float16")
    table["small"] = random.integers(0, 255, rows).astype("uint8")
    table["yes"] = random.integers(0, 2, rows).astype(bool)
    table["gaps"] = np.where(random.random(rows) < 0.2, np.nan, random.normal(size=rows))
    table["word"] = pd.Series([f"wörd {i}" for i in random.integers(0, 9, rows)], dtype=object)
    table["sort"] = pd.Categorical(table["word"])
    table["label"] = random.integers(0, 7, rows)
    return table


NUMBERS = ["a", "b", "half", "small", "yes", "gaps"]


def check(results, x, y):
    for size, shares in results.items():
        assert all(right for _, _, right in shares)
        counts = [len(part) for part, _, _ in shares]
        assert max(counts) - min(counts) <= 1
        np.testing.assert_array_equal(np.concatenate([part for part, _, _ in shares]), x, str(size))
        labels = [labels for _, labels, _ in shares]
        if y is None:
            assert labels == [None] * size
        else:
            assert {part.dtype for part in labels} == {y.dtype}
            np.testing.assert_array_equal(np.concatenate(labels), y, str(size))


@pytest.mark.parametrize("group", [7, 50, 1000])
@pytest.mark.parametrize("compression", ["snappy", "none"])
def test_the_parts_are_the_file(bare_ranks, seven_ranks, tmp_path, group, compression):
    """Row for row, whatever the row groups."""
    table = frame()
    path = tmp_path / "some.parquet"
    table.to_parquet(path, row_group_size=group, compression=compression)
    arguments = {"module": "parquet", "paths": [str(path)], "wanted": {"x": NUMBERS}}
    results = bare_ranks(tables_cases.shares, SIZES, meets="open Parquet files", **arguments)
    results |= seven_ranks(tables_cases.shares, meets="open Parquet files", **arguments)
    check(results, table[NUMBERS].to_numpy(np.float32), table["label"].to_numpy(np.int64))


@pytest.mark.parametrize(
    ("wanted", "x", "y", "dtype"),
    [
        ({"x": "a", "y": "word"}, ["a"], "word", object),
        ({"x": ["b", "a"], "y": "sort"}, ["b", "a"], "word", object),
        ({"x": ["small"], "y": "gaps"}, ["small"], "gaps", "float32"),
        ({"x": [0, 1], "y": "yes"}, ["a", "b"], "yes", "int64"),
        ({"x": [0], "y": [-1, "b"]}, ["a"], ["label", "b"], "int64"),
        ({"x": [0], "y": ["a", "b"], "dtype": np.dtype("float64")}, ["a"], ["a", "b"], "float32"),
        ({"x": ["b", "small"], "y": False, "dtype": np.dtype("int16")}, ["b", "small"], None, None),
    ],
)
def test_columns(bare_ranks, tmp_path, wanted, x, y, dtype):
    """Of two files: by name and by position; what labels are comes from the files."""
    tables = [frame(40, 1), frame(9, 2)]
    for place, table in enumerate(tables):
        table.to_parquet(tmp_path / f"{place}.parquet", row_group_size=16)
    table = pd.concat(tables)
    arguments = {"module": "parquet", "paths": [str(path) for path in sorted(tmp_path.glob("*"))], "wanted": wanted}
    labels = None if y is None else table[y].to_numpy().astype(dtype)
    inputs = table[x].to_numpy().astype(wanted.get("dtype", np.float32))
    check(bare_ranks(tables_cases.shares, (1, 3), meets="open Parquet files", **arguments), inputs, labels)


@pytest.mark.smoke
def test_all_other_columns(bare_ranks, tmp_path):
    """The defaults: a label by its name, and the others as inputs."""
    table = frame()[["label", *NUMBERS]]
    table.to_parquet(tmp_path / "some")
    arguments = {"module": "parquet", "paths": [str(tmp_path / "some")], "wanted": {}}
    x, y = table[NUMBERS].to_numpy(np.float32), table["label"].to_numpy(np.int64)
    check(bare_ranks(tables_cases.shares, (1, 2), meets="open Parquet files", **arguments), x, y)


def test_bytes_read(bare_ranks, tmp_path):
    """Only row groups that overlap, and only columns that are asked for."""
    random = np.random.default_rng(0)
    table = pd.DataFrame({name: random.normal(size=400_000) for name in "abcdy"})
    table.to_parquet(tmp_path / "some", row_group_size=5000, compression="none", use_dictionary=False)
    frame(10).to_parquet(tmp_path / "warm")
    whole = (tmp_path / "some").stat().st_size
    for x, share in ((list("abcd"), 1.0), (["b"], 0.4)):
        arguments = {"module": "parquet", "paths": [str(tmp_path / "some")], "wanted": {"x": x, "y": -1}}
        arguments["warm"] = [str(tmp_path / "some")]
        for size, parts_ in bare_ranks(
            tables_cases.bytes_read, (1, 2, 4), meets="open Parquet files", **arguments
        ).items():
            for read, _ in parts_:
                assert read <= whole * share / size * 1.05, (size, read / whole * size)


def write(path, **columns):
    pq.write_table(pa.table(columns), path)


WRONG = {
    "words as inputs": ({"a": ["x", "y"], "b": [1, 2]}, {}, ["'a'", "words"]),
    "a missing label": ({"a": [1, 2], "b": [1, None]}, {}, ["data row 2", "'b'", "no label", "integers"]),
    "a missing word": ({"a": [1, 2], "b": [None, "x"]}, {}, ["data row 1", "'b'", "no label", "words"]),
    "missing, but integers": ({"a": [1, None], "b": [1, 2]}, {"dtype": np.dtype("int32")}, ["data row 2", "'a'"]),
    "too large": ({"a": [1, 300], "b": [1, 2]}, {"dtype": np.dtype("uint8")}, ["'a'", "uint8"]),
    "not whole": ({"a": [1.5, 3], "b": [1, 2]}, {"dtype": np.dtype("int8")}, ["'a'", "int64"]),
    "lists": ({"a": [[1], [2]], "b": [1, 2]}, {}, ["'a'", "list", "numbers or of words"]),
    "no such column": ({"a": [1], "b": [1]}, {"x": "c"}, ["no column 'c'", "'a', 'b'"]),
    "no rows": ({"a": [], "b": []}, {}, ["no rows"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(bare_ranks, tmp_path, name):
    """The same DataError on every rank, with file, row and name."""
    columns, wanted, words = WRONG[name]
    write(tmp_path / "some", **columns)
    arguments = {"module": "parquet", "paths": [str(tmp_path / "some")], "wanted": wanted}
    for messages in bare_ranks.refused(tables_cases.shares, (1, 2), error="DataError", **arguments).values():
        for word in [str(tmp_path / "some"), *words]:
            assert word in messages[0], messages


def test_files_that_do_not_fit(bare_ranks, tmp_path):
    """Other columns, no Parquet file, a file that is cut off, a file that changes."""
    write(tmp_path / "a", a=[1, 2], b=[1, 2])
    write(tmp_path / "other", a=[1, 2], c=[1, 2])
    (tmp_path / "text").write_text("a,b\n1,2\n")
    (tmp_path / "cut").write_bytes((tmp_path / "a").read_bytes()[:-9])
    damaged = ["cannot be read as Parquet"]
    for second, words in [
        ("other", ["a, c", "a, b"]),
        ("text", damaged),
        ("cut", damaged),
        ("missing", ["no such file"]),
    ]:
        paths = [str(tmp_path / "a"), str(tmp_path / second)]
        arguments = {"module": "parquet", "paths": paths, "wanted": {}}
        for messages in bare_ranks.refused(tables_cases.shares, (1, 2), error="DataError", **arguments).values():
            for word in [paths[1], *words]:
                assert word in messages[0], messages
    arguments = {"module": "parquet", "path": str(tmp_path / "a"), "wanted": {}}
    for message in bare_ranks.refused(tables_cases.changed, (2,), error="DataError", **arguments)[2]:
        assert "changed while it was read" in message


@settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_cut_files(tmp_path, data):
    """Whatever is left of a file, it is refused: its end has what the rest means."""
    frame(30).to_parquet(tmp_path / "whole", row_group_size=8)
    text = (tmp_path / "whole").read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(text[: data.draw(st.integers(0, len(text) - 1))])

    def read(ranks):
        table = parquet.open([str(path)], ReadOptions(x=NUMBERS), ranks)
        return table.read(*row_partition.span(table.rows, ranks.rank, ranks.size))

    for result in on_threads(2, read):
        assert isinstance(result, DataError), result


@settings(deadline=None, derandomize=True, max_examples=200, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=2))
def test_flipped_bytes(tmp_path, flips):
    """They may make another number of a number: all rows are there, or the file is refused."""
    path = tmp_path / "flipped"
    if not (tmp_path / "whole").exists():
        frame(30).to_parquet(tmp_path / "whole", row_group_size=8)
    text = bytearray((tmp_path / "whole").read_bytes())
    for place, value in flips:
        text[place % len(text)] = value
    path.write_bytes(text)

    def read(ranks):
        table = parquet.open([str(path)], ReadOptions(x=NUMBERS, y="word"), ranks)
        x, y = table.read(0, table.rows)
        return x.shape, y.shape

    (result,) = on_threads(1, read)
    assert isinstance(result, DataError) or result == ((30, len(NUMBERS)), (30,)), result


def test_page_checksums(tmp_path):
    """Where the writer has left them, a flipped bit of a value is found."""
    values = np.arange(1000.0)
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"a": values, "label": values}), tmp_path / "a.parquet", **options)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[content.index(values[:50].tobytes()) + 77] ^= 1
    (tmp_path / "a.parquet").write_bytes(content)
    table = parquet.open([str(tmp_path / "a.parquet")], ReadOptions(), World())
    with pytest.raises(DataError, match="a.parquet cannot be read as Parquet: .*CRC"):
        table.read(0, 1000)


def test_more_rows_than_memory(tmp_path):
    """It is said before anything is read."""
    pq.write_table(pa.table({"a": np.zeros(1000), "y": np.zeros(1000)}), tmp_path / "a.parquet")
    table = registry.open_table([str(tmp_path / "a.parquet")], None, ReadOptions(), World())
    table.rows = 1 << 50
    with pytest.raises(DataError, match="of memory, which this machine does not have"):
        table.read(0, table.rows)


def test_what_is_said_of_columns(tmp_path, capsys):
    """Which are inputs, and which the label."""
    pq.write_table(pa.table({"a": [1.0, None], "target": [1, 2]}), tmp_path / "a.parquet")
    said, shard = line(capsys, tmp_path / "a.parquet")
    assert "parquet, 2 rows, 1 input ('a'), label 'target' (by its name)" in said and shard.columns == ("a",)
    assert shard.data.shape == (2, 1) and "1 of the 2 rows of rank 0" in capsys.readouterr().err
