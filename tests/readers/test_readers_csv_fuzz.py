"""CSV text of every sort, and damaged: rows as pandas reads them, or a DataError; the same on every number of ranks."""

import csv
import io
import re
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threads import on_threads

from matex_tf.core import row_partition
from matex_tf.errors import DataError
from matex_tf.readers.formats.csv import table as csv_table
from matex_tf.readers.tables.table import ReadOptions
from tests.support.cases.tables import SMALL, sizes

SETTINGS = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), max_examples=60)
TINY = SMALL | {"block": 16, "step": 8, "piece": 64}


def read(text, ranks, **wanted):
    """What each of some ranks reads, joined; or the message of the DataError that all of them raised."""

    def one(world):
        table = csv_table.open([path], ReadOptions(**wanted), world)
        low, high = row_partition.span(table.rows, world.rank, world.size)
        whole = table.read(0, table.rows)
        mine = table.read(low, high)
        assert np.array_equal(whole[0][low:high], mine[0], equal_nan=True)
        return mine

    with tempfile.TemporaryDirectory() as directory, sizes(**TINY):
        path = str(Path(directory) / "some.csv")
        Path(path).write_bytes(text)
        results = on_threads(ranks, one)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, DataError):
                raise AssertionError(f"{result!r} for {text!r}") from result
        refused = [str(result).replace(directory, "") for result in results if isinstance(result, DataError)]
        if refused:
            assert len(refused) == ranks and len(set(refused)) == 1, results
            return re.sub(r" \(on ranks? .*, host here\)$", "", refused[0])
        x = np.concatenate([x for x, _ in results])
        y = None if results[0][1] is None else np.concatenate([y for _, y in results])
        return x, y


TEXTS = st.text(st.sampled_from('ab ,;"\n\r\té'), max_size=6)
NUMBERS = st.one_of(st.integers(-99, 10**6).map(str), st.floats(-9, 9).map(lambda value: f"{value:.3g}"), st.just(""))


@st.composite
def tables(draw):
    """Rows of two numbers and a text, and how they are written."""
    rows = draw(st.lists(st.tuples(NUMBERS, NUMBERS, TEXTS), min_size=1, max_size=12))
    delimiter = draw(st.sampled_from(",;\t| "))
    out = io.StringIO(newline="")
    end = draw(st.sampled_from(["\n", "\r\n"]))
    quoting = 1 if "\r" in "".join(row[2] for row in rows) else draw(st.sampled_from([0, 1]))
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerows([("one", "two", "text"), *rows])
    text = out.getvalue()
    if draw(st.booleans()):
        text = text[: -len(end)]
    return text.encode(), delimiter, rows


@SETTINGS
@given(tables(), st.integers(1, 5))
def test_what_was_written_is_read(table, ranks):
    """Texts with quotes, delimiters and ends of rows in them, as labels."""
    text, delimiter, rows = table
    numbers = [[float(value) if value else np.nan for value in row[:2]] for row in rows]
    x, none = read(text, ranks, delimiter=delimiter, x=[0, 1], y=False, header=True)
    assert none is None
    np.testing.assert_allclose(x, np.array(numbers, np.float32), rtol=1e-6)
    result = read(text, ranks, delimiter=delimiter, x=["one"], y="text", header=True)
    texts = [row[2] for row in rows]
    if all(value.strip() for value in texts):
        assert result[1].tolist() == texts
    elif any(value.strip() for value in texts):
        assert f"data row {next(i for i, value in enumerate(texts) if not value.strip()) + 1}: " in result


@st.composite
def damaged(draw):
    """A table of which bytes were changed, or the end was cut off."""
    text, delimiter, _ = draw(tables())
    text = bytearray(text)
    for _ in range(draw(st.integers(0, 3))):
        text[draw(st.integers(0, len(text) - 1))] = draw(
            st.one_of(st.sampled_from(b'",\n\r \0\xe9'), st.integers(0, 255))
        )
    return bytes(text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text), delimiter


@settings(SETTINGS, max_examples=80)
@given(damaged(), st.integers(2, 4))
def test_damaged_text(table, ranks):
    """It is refused, by one rank as by several; or it is what pandas reads."""
    text, delimiter = table
    wanted = {"delimiter": delimiter, "header": True, "y": False, "x": [0]}
    one, several = read(text, 1, **wanted), read(text, ranks, **wanted)
    if isinstance(one, str):
        assert isinstance(several, str)  # of several errors another may be found first
        return
    np.testing.assert_array_equal(one[0], several[0])
    frame = pd.read_csv(io.BytesIO(text), sep=delimiter, header=None, skip_blank_lines=True, dtype=str, index_col=False)
    x = pd.to_numeric(frame.iloc[1:, 0]).to_numpy(np.float32)
    np.testing.assert_allclose(one[0][:, 0], x, rtol=1e-6)


@SETTINGS
@given(st.text(st.sampled_from('1.2,;\n\r "a\t'), max_size=60), st.integers(1, 3))
def test_any_text(text, ranks):
    """Nothing is said of it: rows or a DataError, the same for every number of ranks."""
    one, several = read(text.encode(), 1), read(text.encode(), ranks)
    if isinstance(one, str) or isinstance(several, str):
        assert isinstance(one, str) and isinstance(several, str)  # of several errors another may be found first
    else:
        np.testing.assert_array_equal(one[0], several[0])
        assert (one[1] is None) == (several[1] is None) and (one[1] is None or one[1].dtype == several[1].dtype)


def test_integers_of_all_sorts():
    """An integer may have a sign, a point, blanks or quotes."""
    x, _ = read(b'a,b\n1,1\n2,1\n+3,1\n4.0,1\n 5,1\n"6",1\n', 3, x=["a"], y=False, dtype=np.dtype("int16"))
    assert x.dtype == np.int16 and x[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
