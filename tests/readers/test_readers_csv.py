"""CSV files: the parts of all ranks together are the file, as pandas reads it; what is wrong is named on every rank."""

import gzip
import io
import random

import numpy as np
import pandas as pd
import pytest

from tests.support.cases import tables
from tests.support.cases.tables import SMALL

SIZES = (1, 2, 3, 4)
WORDS = ["plain", "with, comma", 'with "quotes"', "two\nlines", "CR LF\r\nin it", "ünï – çødé", '"', ",", " blank "]


def table(rows=203, end="\n", delimiter=",", header=True, words=False, quoting=0):
    """A table as pandas writes it: two columns of numbers, some missing, and a label."""
    random_ = np.random.default_rng(1)
    frame = pd.DataFrame({"height": random_.normal(size=rows).round(4), "width": random_.integers(-9, 1000, rows)})
    frame.loc[random_.integers(0, rows, 5), "height"] = np.nan
    labels = random_.integers(0, 7, rows)
    frame["label"] = [WORDS[i] for i in labels] if words else labels
    return frame.to_csv(index=False, lineterminator=end, sep=delimiter, header=header, quoting=quoting).encode()


BLANKS = b"\n\n".join(table(50).split(b"\n")).replace(b"\n\n", b"\n  \t\n\r\n", 20)
INCHES = b"size,weight,name\n" + b"".join(b'%d,2.5,a %d" pipe %s\n' % (i, i, b'"' * (i % 3)) for i in range(150))
MIXED = b"a,b\n" + b"".join(b'%d,"%d"\n%d,x""y\n%d,"p\n""q"" r"s"t\n' % (i, i, i, i) for i in range(60))

#: Text, what is asked for, and how pandas reads the same.
WELL_FORMED = {
    "plain": (table(), {}, {}),
    "one row": (b"a,b\n1,2\n", {}, {}),
    "fewer rows than ranks": (b"a,b\n1,2\n3,4\n5,6", {}, {}),
    "no header": (table(header=False), {}, {"header": None}),
    "header that must be named": (b"1,2\n3,4\n5,6\n", {"header": True}, {}),
    "numbers below words that are no header": (b"1,a\n2,b\n3,c\n", {}, {"header": None}),
    "no last newline": (table().rstrip(b"\n"), {}, {}),
    "CR LF": (table(end="\r\n"), {}, {}),
    "CR": (table(end="\r"), {}, {}),
    "mixed ends": (table(end="\r\n").replace(b"\r\n", b"\n", 90).replace(b"\r\n", b"\r", 40), {}, {}),
    "byte-order mark": (b"\xef\xbb\xbf" + table(), {}, {}),
    "byte-order mark, quoted header": (b'\xef\xbb\xbf"a","b"\n1,2\n', {}, {}),
    "blank lines": (BLANKS, {}, {}),
    "semicolons": (table(delimiter=";"), {}, {"sep": ";"}),
    "tabs": (table(delimiter="\t"), {}, {"sep": "\t"}),
    "bars": (table(delimiter="|", words=True), {}, {"sep": "|"}),
    "blanks": (table(delimiter=" "), {}, {"sep": " "}),
    "delimiter given": (table(delimiter="#"), {"delimiter": "#"}, {"sep": "#"}),
    "everything quoted": (table(quoting=1), {}, {}),
    "words": (table(words=True), {}, {}),
    "words, CR LF": (table(words=True, end="\r\n"), {}, {}),
    "words, CR": (table(words=True, end="\r").replace(b"two\nlines", b"two lines"), {}, {}),
    "quotes in unquoted fields": (INCHES, {}, {}),
    "quotes of all sorts": (MIXED, {"delimiter": ","}, {}),
    "number-like words": (b"a,b\n" + b"1,007\n" * 99 + b"1,x\n", {}, {"dtype": {"b": str}}),
    "words that look missing": (b"a,b\n1,NA\n2,None\n3,ok\n", {}, {"keep_default_na": False}),
    "true and false": (b"a,b\n" + b"1,True\n2,false\n" * 20, {}, {"dtype": {"b": str}}),
    "numbers as labels": (b"a,b\n" + b"1,2\n" * 70 + b"1,2.5\n1,\n", {}, {}),
    "long rows": (b"a,b\n" + b"1,%s\n2,y\n" % (b"x" * 5000) * 5, {}, {}),
}  # fmt: skip


def expected(text, options):
    """What pandas makes of a whole file: inputs and labels, the last column."""
    frame = pd.read_csv(io.BytesIO(text), **options)
    labels = frame.iloc[:, -1]
    if labels.dtype.kind == "i":
        labels = labels.to_numpy(np.int64)
    elif labels.dtype.kind == "f":
        labels = labels.to_numpy(np.float32)
    else:
        labels = labels.to_numpy(object)
    return frame.iloc[:, :-1].to_numpy(np.float32), labels


def joined(results, meets="CSV"):
    """The ranks' parts, one behind the other, for each size; parts differ by a row at most."""
    for size, parts in results.items():
        assert all(right for _, _, right in parts), [right for _, _, right in parts]
        counts = [len(x) for x, _, _ in parts]
        assert max(counts) - min(counts) <= 1
        labels = None if parts[0][1] is None else np.concatenate([y for _, y, _ in parts])
        yield size, np.concatenate([x for x, _, _ in parts]), labels


def everywhere(bare_ranks, seven_ranks, case, **kwargs):
    return bare_ranks(case, SIZES, meets="open CSV files", **kwargs) | seven_ranks(
        case, meets="open CSV files", **kwargs
    )


def check(results, x, y):
    for size, mine, labels in joined(results):
        np.testing.assert_array_equal(mine, x, str(size))
        assert mine.dtype == x.dtype and labels.dtype == y.dtype, size
        np.testing.assert_array_equal(labels, y, str(size))


@pytest.mark.parametrize("name", WELL_FORMED)
def test_the_parts_are_the_file(bare_ranks, seven_ranks, tmp_path, name):
    """Row for row, in whatever pieces the text is treated."""
    text, wanted, options = WELL_FORMED[name]
    path = tmp_path / "some.csv"
    path.write_bytes(text)
    x, y = expected(text, options)
    arguments = {"module": "csv", "paths": [str(path)], "wanted": wanted}
    check(everywhere(bare_ranks, seven_ranks, tables.shares, small=SMALL, **arguments), x, y)


@pytest.mark.parametrize("name", ["plain", "words", "byte-order mark", "quotes of all sorts", "one row"])
def test_gzip(bare_ranks, seven_ranks, tmp_path, name):
    """One rank unpacks it, and the others get their parts."""
    text, wanted, options = WELL_FORMED[name]
    path = tmp_path / "some.csv.gz"
    path.write_bytes(gzip.compress(text))
    x, y = expected(text, options)
    arguments = {"module": "csv", "paths": [str(path)], "wanted": wanted, "small": SMALL}
    check(everywhere(bare_ranks, seven_ranks, tables.shares, **arguments), x, y)


@pytest.mark.parametrize("header", [True, False])
def test_files_as_one_table(bare_ranks, seven_ranks, tmp_path, header):
    """Plain and gzip, of very different lengths; one has no row behind its header."""
    texts = [table(n, words=True, header=header, end="\r\n" if n == 30 else "\n") for n in (1, 100, 30, 2, 55)]
    texts += [texts[0].split(b"\n")[0]] if header else []
    paths = []
    for place, text in enumerate(texts):
        packed = place in (2, 4)
        paths.append(tmp_path / f"{place}.csv{'.gz' * packed}")
        paths[-1].write_bytes(gzip.compress(text) if packed else text)
    wholes = [expected(text, {} if header else {"header": None}) for text in texts]
    x = np.concatenate([x for x, y in wholes if len(y)])
    y = np.concatenate([y for x, y in wholes if len(y)])
    arguments = {"module": "csv", "paths": list(map(str, paths)), "wanted": {"header": header}, "small": SMALL}
    check(everywhere(bare_ranks, seven_ranks, tables.shares, **arguments), x, y)


COLUMNS = b"id,Target,a,b\n1,3,0.5,6\n2,4,1.5,8\n3,5,2.5,9\n"


@pytest.mark.parametrize(
    ("wanted", "x", "y"),
    [
        ({}, [0, 2, 3], 1),
        ({"y": False}, [0, 1, 2, 3], None),
        ({"y": "b"}, [0, 1, 2], 3),
        ({"y": -1}, [0, 1, 2], 3),
        ({"y": 0, "x": ["b", 1]}, [3, 1], 0),
        ({"x": "a"}, [2], 1),
        ({"x": ("a",), "y": ("b", "Target")}, [2], [3, 1]),
        ({"x": ["a", "b"], "y": "b"}, [2, 3], 3),
        ({"y": "a", "dtype": np.dtype("float64")}, [0, 1, 3], 2),
        ({"y": "a", "dtype": np.dtype("int16")}, [0, 1, 3], 2),
        ({"y": "a", "dtype": np.dtype("float16")}, [0, 1, 3], 2),
    ],
)
def test_columns(bare_ranks, tmp_path, wanted, x, y):
    """By name, by position from either end, and by default."""
    path = tmp_path / "some.csv"
    path.write_bytes(COLUMNS)
    whole = pd.read_csv(path).to_numpy()
    results = bare_ranks(tables.shares, (1, 2), meets="open CSV files", module="csv", paths=[str(path)], wanted=wanted)
    for _, mine, labels in joined(results):
        assert mine.dtype == wanted.get("dtype", np.float32)
        np.testing.assert_array_equal(mine, whole[:, x])
        if y is None:
            assert labels is None
        else:
            assert labels.dtype == (np.float32 if y == 2 or y == [2] else np.int64)
            np.testing.assert_array_equal(labels, whole[:, y])


@pytest.mark.parametrize("keep", [None, 0])
def test_a_part_in_small_reads(bare_ranks, tmp_path, keep):
    """As streams read it: what was kept is let go of, also where nothing may be kept."""
    path = tmp_path / "some.csv"
    path.write_bytes(table(words=True))
    x, _ = expected(path.read_bytes(), {})
    results = bare_ranks(tables.in_pieces, (1, 3), meets="open CSV files", paths=[str(path)], wanted={}, keep=keep)
    for parts in results.values():
        np.testing.assert_array_equal(np.concatenate([mine for mine, _ in parts]), x)
        assert [held for _, held in parts] == [0] * len(parts)


@pytest.mark.parametrize("files", [1, 5])
def test_bytes_read(bare_ranks, tmp_path, files):
    """No rank reads more than its share of the bytes and five in a hundred."""
    random_ = random.Random(3)
    rows = [f"{random_.random():.6f},{i},{random_.random() * 10 ** random_.randrange(6):.3f},{i % 3}\n"
            for i in range(20_000)]  # fmt: skip
    for place in range(files):
        (tmp_path / f"{place}.csv").write_text("a,b,c,d\n" + "".join(rows) * (30 // files))
    warm = tmp_path / "warm"
    warm.write_bytes(COLUMNS)
    paths = sorted(tmp_path.glob("*.csv"))
    whole = sum(path.stat().st_size for path in paths)
    assert whole > 13e6
    arguments = {"module": "csv", "warm": [str(warm)], "paths": list(map(str, paths)), "wanted": {}}
    for size, parts in bare_ranks(tables.bytes_read, (1, 2, 4), meets="open CSV files", **arguments).items():
        assert sum(rows for _, rows in parts) == 600_000
        for read, _ in parts:
            assert read <= whole / size * 1.05, (size, [read / whole * size for read, _ in parts])


WRONG = {
    "too many fields": (b"1,2,3\n" * 80 + b"1,2,3,4\n" + b"1,2,3\n" * 9, {}, ["data row 81", "4 fields", "3 were"]),
    "too few fields": (b"1,2,3\n" * 80 + b"1,2\n" + b"1,2,3\n" * 9, {}, ["data row 81", "2 fields", "3 were"]),
    "one too few, one too many": (b"1,2,3\n1,2\n1,2,3,4\n1,2,3\n", {}, ["data row 2", "2 fields"]),
    "a field too few, quoted": (b'"a","b"\n"1","2,3"\n1\n', {"x": 0}, ["data row 2", "1 field,"]),
    "a word among inputs": (
        b"a,b\n" + b"1,2\n" * 30 + b"1.5x,3\n",
        {},
        ["data row 31", "'a'", "'1.5x'", "not a number"],
    ),
    "a blank among inputs": (b"a,b\n1,2\n ,3\n", {}, ["data row 2", "'a'", "' '", "not a number"]),
    "inputs that are words": (b"name,size\nx,1\ny,2\n", {}, ["data row 1", "'name'", "'x'"]),
    "a missing label": (b"a,b\n" + b"1,2\n" * 30 + b"1,\n", {}, ["data row 31", "'b'", "no label", "integers"]),
    "a label that is NA": (b"a,b\n" + b"1,2\n" * 30 + b"1,NA\n", {}, ["data row 31", "'b'", "no label"]),
    "a missing word": (b"a,b\n1,x\n2,y\n3,\n", {}, ["data row 3", "'b'", "no label", "words"]),
    "missing, but integers": (b"a,b\n1,1\n,2\n", {"dtype": np.dtype("int32")}, ["data row 2", "'a'", "type int32"]),
    "too large": (b"a,b\n1,1\n300,2\n", {"dtype": np.dtype("uint8")}, ["data row 2", "'300'", "not of type uint8"]),
    "hexadecimal": (b"a,b\n1,1\n0x10,2\n", {"dtype": np.dtype("int16")}, ["data row 2", "'0x10'", "not a number"]),
    "no such column": (COLUMNS, {"x": "c"}, ["no column 'c'", "'id', 'Target', 'a', 'b'"]),
    "no such position": (COLUMNS, {"y": 4}, ["4 columns", "y=4", "0 to 3"]),
    "two columns of a name": (b"a,a,b\n1,2,3\n", {"x": "a"}, ["2 columns named 'a'"]),
    "a name without a header": (b"1,2\n3,4\n", {"y": "b", "header": False}, ["no header", "'b'"]),
    "nothing left for inputs": (b"a\n1\n", {}, ["no other for the inputs"]),
    "inputs as complex numbers": (COLUMNS, {"dtype": np.dtype("complex64")}, ["complex64"]),
    "header only": (b"a,b\n", {"header": True}, ["header and no rows"]),
    "header only, found": (b"a,b", {}, ["header and no rows"]),
    "nothing": (b"", {}, ["is empty"]),
    "a byte-order mark only": (b"\xef\xbb\xbf", {}, ["no row"]),
    "blank lines only": (b"\n\n  \n", {}, ["no row"]),
    "no UTF-8": (b"a,b\n" + b"1,x\n" * 30 + b"2,\xe9t\xe9\n", {}, ["data row 31", "UTF-8"]),
    "UTF-16": ("a,b\n1,2\n".encode("utf-16"), {}, ["UTF-16"]),
    "a NUL byte": (b"a,b\n" + b"1,2\n" * 30 + b"1,\x00\n", {}, ["data row 31", "NUL"]),
    "an open quote": (b"a,b\n" + b"1,2\n" * 30 + b'1,"2\n' + b"1,2\n" * 70, {}, ["data row 31", "closing quote"]),
    "a pattern as delimiter": (COLUMNS, {"delimiter": r"\s+"}, ["not one character"]),
    "a quote as delimiter": (COLUMNS, {"delimiter": '"'}, ["cannot be a delimiter"]),
    "truncated gzip": (gzip.compress(table())[:-20], {}, ["not whole", "gzip"]),
    "damaged gzip": (gzip.compress(table())[:200] + b"????" + gzip.compress(table())[204:], {}, ["not whole"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(bare_ranks, tmp_path, name):
    """The same DataError on every rank, with file, row and name."""
    text, wanted, words = WRONG[name]
    path = tmp_path / "some.csv"
    path.write_bytes(text)
    arguments = {"module": "csv", "paths": [str(path)], "wanted": wanted, "small": SMALL}
    for size, messages in bare_ranks.refused(tables.shares, (1, 3), error="DataError", **arguments).items():
        assert len(set(messages)) == 1, messages
        for word in [str(path), *words] if "delimiter" not in name else words:
            assert word in messages[0], (size, word, messages[0])


def test_files_that_do_not_fit(bare_ranks, tmp_path):
    """Another header, a missing file, a directory: named."""
    paths = [tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "c.csv"]
    paths[0].write_bytes(b"a,b\n1,2\n")
    paths[1].write_bytes(b"a,c\n1,2\n" * 1)
    for second, words in [(paths[1], ["another header", "'c', not 'b'"]), (paths[2], ["no such file"]),
                          (tmp_path, ["directory"])]:  # fmt: skip
        arguments = {"module": "csv", "paths": [str(paths[0]), str(second)], "wanted": {}}
        for messages in bare_ranks.refused(tables.shares, (1, 3), error="DataError", **arguments).values():
            for word in [str(second), *words]:
                assert word in messages[0]


def test_a_file_that_changes(bare_ranks, tmp_path):
    """Rows that are read later are not of another file."""
    for size in (1, 3):
        path = tmp_path / f"{size}.csv"
        path.write_bytes(table())
        arguments = {"module": "csv", "path": str(path), "wanted": {}}
        for message in bare_ranks.refused(tables.changed, (size,), error="DataError", **arguments)[size]:
            assert "changed while it was read" in message
