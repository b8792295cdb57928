"""Work on the input is divided: the same batches, bit for bit, and 1/p of the maps."""

import re

import pytest
from compare import same

from tests.support.cases import division

DIVIDED = [
    "records",
    "interleave",
    "parallel",
    "positions",
    "after filter",
    "shuffled after",
    "shuffled and repeated",
    "shuffled, mapped and repeated",
    "map behind",
    "ragged",
    "padded",
    "open shapes",
    "few",
    "random",
    "random, shuffled and repeated",
]
#: Rows that ranks compare before they divide, rows of neighbours that are left out, and rows made ahead of what is
#: used: as many as buffers hold, however many rows there are.
MORE = dict.fromkeys(["records", "parallel", "open shapes", "map behind", "interleave"], 200)
MORE |= dict.fromkeys(["random, shuffled and repeated", "shuffled and repeated", "shuffled, mapped and repeated"], 200)


@pytest.mark.variants(3)
@pytest.mark.parametrize("kind", DIVIDED)
def test_divided(ranks, kind):
    """Every batch has the rows that it has on one rank, and each rank has done the maps for its own."""
    meets = "gather a batch" if kind == "ragged" else "merge metrics"  # ragged batches are computed whole
    results = ranks(division.walked, meets=meets, kind=kind)
    calls = {size: max(value.pop("calls") for value in values) for size, values in results.items()}
    more = MORE.get(kind, 90)
    assert calls[1] > 0 and all(most <= calls[1] / size + more for size, most in calls.items()), calls
    same(results, rtol=0, atol=0)


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["loop", "iterator", "counted", "in graph", "iterator in graph", "saved"])
def test_loop(ranks, kind):
    """A loop of the script's own: each rank does the maps for its rows, once the loop is known to be shared out."""
    results = ranks(division.looped, kind=kind)
    calls = {size: max(value.pop("calls") for value in values) for size, values in results.items()}
    assert calls[1] >= 1200 * (kind != "counted"), calls
    whole = 300 if kind != "saved" else calls[1]  # what is made before it is known, and ahead of what is used
    assert all(most <= calls[1] / size + whole for size, most in calls.items()), calls
    same(results)


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("csv", (2, "")),
        ("csv of some columns", (2, "")),
        ("csv of one file", (2, "")),
        ("csv of two files", (2, "")),
        (
            "csv of line ends in quotes",
            (0, "make_csv_dataset parses lines as it reads them, since /0.csv has line ends inside"),
        ),
        ("csv with errors ignored", (0, "make_csv_dataset parses lines as it reads them, since it leaves out lines")),
    ],
)
def test_csv(ranks, kind, said):
    """Lines of CSV files are parsed for a rank's own rows; by every rank where a record may be more than a line."""
    results = ranks(division.table_read, meets="merge metrics", kind=kind)
    for values in list(results.values())[1:]:
        ((maps, kept),) = values[0].pop("said")
        assert maps == said[0] and kept.startswith(said[1]), (maps, kept)
    same(
        {size: [{"batches": value["batches"]} for value in values] for size, values in results.items()}, rtol=0, atol=0
    )


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "kind",
    [
        "interleaved in parallel",
        "one file",
        "several files",
        "parallel",
        "autotuned",
        "listed",
        "enumerated",
        "flat",
        "interleaved",
        "interleaved parts",
        "compressed",
        "filtered",
    ],
)
def test_records(ranks, kind):
    """Every rank reads the records of TFRecord files, and parses its own."""
    results = ranks(division.records_read, meets="merge metrics", kind=kind)
    for values in list(results.values())[1:]:
        assert [value.pop("said") for value in values] == [[(1, "")]] * len(values)
    results[1][0].pop("said")
    same(results, rtol=0, atol=0)


def test_rows_of_two_shapes(ranks):
    """What one rank cannot batch no rank trains on, also where the rows of each have one shape."""
    for message in ranks.refused(division.differing, (2,), error="RanksDisagree")[2]:
        assert "rows of shape (3,)" in message and "rows of shape (4,)" in message, message


@pytest.mark.parametrize("kind", ["python", "map across", "map across, repeated", "map of padded"])
def test_whole(ranks, kind):
    """What calls Python or looks across rows is done by all ranks for all rows."""
    results = ranks(division.walked, meets="merge metrics", kind=kind)
    assert len({value.pop("calls") for values in results.values() for value in values}) == 1
    same(results, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["index", "workers", "processes", "steps", "no room", "random"])
def test_in_turn(ranks, kind):
    """Each batch of a PyDataset is made by one rank, by every rank where making one draws random numbers; its rows go
    through the memory of the node, where that has room."""
    results = ranks(division.in_turn, meets="merge metrics", kind=kind)
    made = {size: max(value.pop("made") for value in values) for size, values in results.items()}
    taken = {size: [value.pop("taken") for value in values] for size, values in results.items()}
    assert all((min(of_ranks) > 0) == (size > 1 and kind != "no room") for size, of_ranks in taken.items()), taken
    reference = same(results, rtol=0, atol=0)
    assert made[max(made)] >= made[1] if reference["whole"] else made[max(made)] < made[1], made


def test_batch_that_cannot_be_made(ranks):
    """Its error reaches every rank, at the step where it reaches one; nothing is left of the walk that it ended."""
    results = ranks(division.torn, meets="merge metrics")
    reference = same(results, rtol=0, atol=0)
    assert reference["said"] and reference["steps"] == [0, 1, 2] and reference["threads"] == 0, reference


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["plain", "class", "steps"])
def test_training(ranks, kind):
    """Losses, weights, validation and predictions are those of one rank."""
    same(ranks(division.trained, kind=kind))


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["no map", "map", "batches"])
def test_data_of_several_fits(ranks, kind):
    """Where the orders of a second `fit` begin follows from what one process has read ahead in the first one."""
    same(ranks(division.fitted_again, kind=kind))


def test_files_of_each_rank(ranks):
    """Ranks find out by the first batch that their files hold other rows, and go back to whole batches."""
    results = ranks(division.own_files, (1, 2, 3), meets="merge metrics")
    for values in results.values():
        for epoch in (0, 1):
            rows = [row for batch in values[0][2 * epoch : 2 * epoch + 2] for row in batch]
            assert sorted(rows) == list(range(12))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("python", "every rank does all of the work on it: a function of it calls Python"),
        ("after filter", ""),
    ],
)
def test_line_of_an_epoch_that_waits(ranks, kind, why):
    """It says what part of a step the input takes, what of it every rank does, and why."""
    said, *others = ranks(division.waiting, (2,), meets="merge metrics", kind=kind)[2]
    assert re.search(
        rf"input takes \d+ % of a step: rank \d waited [\d.]+ of [\d.]+ s of an epoch for it.*{why}", said
    ), said
    assert others == [""]


@pytest.mark.parametrize("kind", ["fit", "from_generator"])
def test_generator_that_differs(ranks, kind):
    """Rows are those of rank 0, and as many."""
    same(ranks(division.generated, meets="merge metrics", kind=kind), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "how", "why"),
    [
        (
            "python",
            "runs 1 map of the tf.data pipeline for its rows of each batch (--data exact)",
            "all ranks do what comes before it, since a map calls Python",
        ),
        (
            "generator",
            "runs 1 map of the tf.data pipeline for its rows of each batch (--data exact)",
            "all ranks do what comes before it, since in the first pass of a loop of the script's own every",
        ),
        (
            "map across",
            "runs the whole tf.data pipeline and keeps its rows of each batch (--data exact)",
            "map comes after batch, and may look at several rows",
        ),
    ],
)
def test_lines_of_a_loop(ranks, kind, how, why):
    """They say what every rank does, and why, and what part of a step that takes."""
    said, *others = ranks(division.waiting_loop, (2,), kind=kind)[2]
    split = r"division\.py:\d+: each batch of this loop is split among \d ranks \(--shard-loops\), and each rank"
    assert re.search(rf"{split} {re.escape(how)}[:;] {why}", said), said
    waited = r"input takes \d+ % of a step: rank 0 waited [\d.]+ of [\d.]+ s of a pass over the data"
    assert re.search(f"{waited}.*{why}", said), said
    assert others == [""]
