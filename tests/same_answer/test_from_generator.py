"""`tf.data.Dataset.from_generator`: the same rows on every rank, whoever makes them."""

import numpy as np
import pytest
from compare import same

from tests.support.cases import elements

#: Elements of a walk, and those that a rank looks at before the first walk of each of five calls.
ROWS, LOOKED_AT = 50, 5 * 32


def _compare(results):
    one, several = results[1][0], results[max(results)][0]
    same({size: values if size > 1 else results[2][:1] for size, values in results.items()}, rtol=0, atol=0)
    assert len(one["batches"]) == len(several["batches"])
    assert several["threads"] == 0
    for plain, shared in zip(one["batches"], several["batches"], strict=True):
        for here, there in zip(plain, shared, strict=True):
            np.testing.assert_array_equal(there, here)
    np.testing.assert_array_equal(several["predicted"], one["predicted"])
    for here, there in zip(one["left"], several["left"], strict=True):
        np.testing.assert_array_equal(there, here)


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.smoke), "repeat", "no map", "argument"])
def test_one_rank_makes_them(ranks, kind):
    """The first rank of the node runs the code; batches are those of one rank, bit for bit, and nothing is left."""
    results = ranks(elements.rows, (1, 2, 4), meets="", kind=kind)
    made = {size: [value.pop("made") for value in values] for size, values in results.items()}
    said = {size: [value.pop("said") for value in values] for size, values in results.items()}
    for size in (2, 4):
        assert "the first rank of each node runs the generator of from_generator" in said[size][0][0], said
        assert ("each rank runs 1 map" in said[size][0][1]) == (kind != "no map"), said
        left = 2 * ROWS  # of the loop behind, which every rank runs
        assert max(made[size][1:]) <= LOOKED_AT + 5 * 3 + left < made[size][0], made
    _compare(results)


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("draws", "draws random numbers"),
        ("counts", "other code can see"),
        ("cache", "cache"),
        ("whole", ""),
    ],
)
def test_every_rank_makes_them(ranks, kind, why):
    """Where its code leaves something behind every rank runs it as often as one rank does, also where work is whole."""
    results = ranks(elements.rows, (1, 2, 4), meets="", kind=kind)
    for values in results.values():
        for value in values:
            value.pop("made")
    said = {size: [value.pop("said") for value in values] for size, values in results.items()}
    for size in (2, 4):
        line = said[size][0][0]
        assert why in line and line.startswith("every rank runs" if why else "the first rank of each node"), said
    _compare(results)


@pytest.mark.variants(1)
@pytest.mark.parametrize(("kind", "what"), [("goes on", "list_iterator"), ("queue", "Queue")])
def test_generator_that_goes_on(ranks, kind, what):
    """What reads on in something that other code has made is not looked into, and every rank runs it."""
    results = ranks(elements.gone_on, (1, 2, 4), meets="", kind=kind)
    for size in (2, 4):
        assert f"it continues a {what} that" in results[size][0].pop("said"), results
        assert {value.pop("said", "") for value in results[size][1:]}
    results[1][0].pop("said")
    same(results, rtol=0, atol=0)


@pytest.mark.variants(0)
def test_ranks_that_fall_behind(ranks):
    """A rank that finds an element gone runs the code by itself from there."""
    results = ranks(elements.rows, (1, 2, 4), meets="", kind="plain", kept=100)
    for value in (value for values in results.values() for value in values):
        value.pop("made"), value.pop("said")
    _compare(results)


@pytest.mark.variants(0)
def test_two_nodes(ranks):
    """A rank of each node runs the code."""
    values = ranks(elements.rows, (4,), meets="", kind="plain", hosts="abab")[4]
    made = [value.pop("made") for value in values]
    assert min(made[:2]) > 5 * ROWS and max(made[2:]) <= LOOKED_AT + 2 * ROWS, made
    one = ranks(elements.rows, (1, 2), meets="", kind="plain")
    for value in (*one[1], *one[2], *values):
        value.pop("made", None), value.pop("said")
    _compare({**one, 4: values})


def test_element_that_cannot_be_made(ranks):
    """Its error reaches every rank, at the step where it reaches one; nothing is left of the walk that it ended."""
    reference = same(ranks(elements.torn, (1, 2, 4), meets=""), rtol=0, atol=0)
    assert reference["said"] and reference["threads"] == 0 and len(reference["batches"]) == 5, reference


def test_rows_of_each_rank(ranks):
    """A generator that gives each rank other rows is run by every rank: together they are the batch."""
    assert set(map(tuple, (value for values in ranks(elements.differing, meets="").values() for value in values))) == {
        tuple(range(ROWS))
    }


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["plain", "no map", "draws", "cache"])
def test_loop_of_the_script(ranks, kind):
    """From its second walk on one rank makes the elements, also where the loop is left in the middle; where its code
    leaves something behind every rank does, as on one."""
    results = ranks(elements.looped, (1, 4), meets="", kind=kind)
    said = {size: [value.pop("said") for value in values] for size, values in results.items()}
    made = [value.pop("made") for value in results[4]]
    results[1][0].pop("made")
    shared = kind in ("plain", "no map")
    who = "the first rank of each node runs" if shared else "every rank runs"
    assert any(line.startswith(who) for line in said[4][0]), said
    for first, _, last in made[1:]:
        assert first == ROWS and (last - first <= 32) == (shared or kind == "cache"), made
    assert made[0][-1] > 2 * ROWS or kind == "cache"
    same(results, rtol=1e-5)
