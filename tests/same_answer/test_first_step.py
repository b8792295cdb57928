"""The first training step is held against one rank, and a line says so where it is another one."""

import pytest
from compare import difference, same

from tests.support.cases import first_step

SUM = "its loss is a sum over the batch"
ROWS = "compares rows of the batch"
SECONDS = 300  # for several trainings on a busy machine
NO_SUM = "Leave out --loss sum"


def said(ranks, variants):
    """For each of several trainings on 3 ranks what rank 0 says of its first step; no other rank says anything."""
    first, *others = ranks(first_step.several, (3,), variants=variants, seconds=SECONDS)[3]
    assert not any(one["lines"] for other in others for one in other.values())
    return {name: one["lines"] for name, one in first.items()}


def answers(results):
    """The same without the lines, and without what counts traces."""
    parts = ("weights", "losses", "logs", "mean")
    return {
        size: [
            {name: {part: one[part] for part in parts if part in one} for name, one in rank.items()} for rank in several
        ]
        for size, several in results.items()
    }


def test_mean(ranks, first_of):
    """An honest mean, with draws and batch normalization: no line, and not a bit of the training is another one."""
    ways = {"fit": {}, "loop": {"loop": True}, "traced once": {"loop": True, "signature": True}}
    ways = {name: {**way, "random": True} for name, way in first_of(ways, 1).items()}
    checked, not_checked = (
        {name: {**way, "options": {"check": check}} for name, way in ways.items()} for check in ("on", "off")
    )
    on = ranks(first_step.several, (1, 3), variants=checked, seconds=SECONDS)
    off = ranks(first_step.several, (3,), variants=not_checked, seconds=SECONDS)
    assert not any(one["lines"] for one in (*on[3][0].values(), *off[3][0].values()))
    assert not list(difference(off[3][0], on[3][0], 0.0, 0.0))
    same(answers(on), rtol=1e-4)


#: Losses that are a sum over the batch.
SUMS = {
    "step": {},
    "loop": {"loop": True},
    "compute_loss": {"kind": "compute_loss"},
    "two optimizers": {"kind": "pair"},
}


def test_sum(ranks, first_of):
    """A sum is known as one, with its factor, and a mean with `--loss sum` too."""
    wrong = {"options": {"loss": "sum"}}
    sums = first_of(SUMS, 2)
    found = said(ranks, {**{name: {**way, "loss": "sum"} for name, way in sums.items()}, "no sum": wrong})
    assert all(len(lines) == 1 for lines in found.values()), found
    assert all(SUM in found[name][0] and "0.333 times" in found[name][0] for name in sums), found
    assert "Trained trained" in found["step"][0] and "step in the loop at first_step.py" in found["loop"][0]
    assert NO_SUM in found["no sum"][0] and " 3 times" in found["no sum"][0]


def test_loss_sum(ranks, first_of):
    """`--loss sum` gives the answer of one rank, on ragged batches, and then there is no line; of an eager loop one
    says that it is not compared."""
    ways = first_of({**SUMS, "eager loop": {"loop": True, "eager": True}}, 1)
    variants = {name: {**way, "loss": "sum", "options": {"loss": "sum"}} for name, way in ways.items()}
    results = ranks(first_step.several, (1, 3), variants=variants, seconds=SECONDS)
    lines = {name: one["lines"] for name, one in results[3][0].items()}
    assert all("is not compared with one rank" in line for line in lines.pop("eager loop", [])), lines
    assert not any(lines.values()), lines
    same(answers(results), rtol=1e-4)


#: Ways to train, by which a step that compares rows is found.
WAYS = {
    "plain": {},
    "two optimizers": {"kind": "pair"},
    "loop": {"loop": True},
    "accumulated": {"optimizer": {"gradient_accumulation_steps": 2}},
    "per rank": {"options": {"batch": "per-rank"}},
    "pipeline": {"pipeline": True},
    "several steps": {"compiling": {"steps_per_execution": 3}},
    "jit": {"compiling": {"jit_compile": True}},
    "pipe": {"options": {"strategy": "pipe"}},
    "source": {"options": {"data": "source"}, "pipeline": True},
    "concurrent": {"options": {"schedule": "concurrent"}},
    "own rows": {"own": True},
    "sparse": {"kind": "embedding"},
}


def test_rows(ranks, first_of):
    """A loss that compares rows is found in every way to train."""
    ways = first_of(WAYS, 2)
    found = said(ranks, {name: {**way, "loss": "contrastive"} for name, way in ways.items()})
    assert {name: [ROWS in line for line in lines] for name, lines in found.items()} == dict.fromkeys(ways, [True]), (
        found
    )
    assert "Trained trained" in found["plain"][0] and "matex_tf.all_rows" in found["plain"][0]


def test_rounding(ranks, first_of):
    """Units whose input is as good as 0: rounding decides what their gradients are, and is known as rounding."""
    ways = {
        **first_of({"asked": {"options": {"check": "on"}}, "quiet": {}}, 1),
        "compares rows": {"loss": "contrastive"},
    }
    found = said(ranks, {name: {**way, "kind": "kinks"} for name, way in ways.items()})
    assert not found.get("quiet")
    assert ["rounding alone changes" in line for line in found["asked"]] == [True], found
    assert [ROWS in line for line in found["compares rows"]] == [True], found


@pytest.mark.variants(0)
def test_all_rows(ranks, first_of):
    """With all rows there is no line."""
    names = ("plain", "loop", "accumulated", "pipe", "source", "own rows", "sparse")
    ways = first_of({name: WAYS[name] for name in names}, 1)
    found = said(ranks, {name: {**way, "loss": "all rows"} for name, way in ways.items()})
    assert found == dict.fromkeys(ways, [])


def test_table(ranks):
    """A table that a step only reads is no obstacle, in a layer (`StringLookup`) or beside it."""
    found = said(ranks, {name: {"kind": "table", "loss": name} for name in ("contrastive", "mean")})
    assert [ROWS in line for line in found["contrastive"]] == [True], found
    assert not found["mean"]


#: What stands in the way: a line says so.
ASIDE = {
    "print": ({"kind": "print"}, "it prints"),
    "python": ({"kind": "python"}, "it runs Python"),
    "eager loop": ({"loop": True, "eager": True}, "no tf.function was called with the batch itself"),
    "gossip": ({"options": {"strategy": "gossip"}}, "--strategy gossip"),
    "eager": ({"compiling": {"run_eagerly": True}}, "run_eagerly=True"),
    "loop that prints": ({"loop": True, "effect": True}, "it prints"),
    "changed batch": ({"loop": True, "changed": True}, "something that was computed of the batch"),
    "loop inside": ({"loop": True, "inside": True}, "it runs inside of a tf.function"),
    "table that changes": ({"kind": "counts"}, "it has an effect of its own (LookupTableInsertV2)"),
}


@pytest.mark.variants(0)
def test_aside(ranks, first_of):
    """A step with effects is not run once more, and a line says so, unless a strategy says that it does otherwise."""
    aside = first_of(ASIDE, 3)
    asked = {name: {**way, "options": {**way.get("options", {}), "check": "on"}} for name, (way, _) in aside.items()}
    by_itself = {
        f"{name}, by itself": ASIDE[name] for name in ("print", "eager loop", "table that changes", "loop inside")
    }
    expected = {name: words for name, (_, words) in {**aside, **by_itself}.items()}
    quiet = {"off": {"kind": "print", "options": {"check": "off"}}, "gossip, by itself": ASIDE["gossip"][0]}
    found = said(ranks, {**asked, **{name: way for name, (way, _) in by_itself.items()}, **quiet})
    assert not any(found.pop(name) for name in quiet)
    assert {name: [expected[name] in line for line in lines] for name, lines in found.items()} == dict.fromkeys(
        expected, [True]
    ), found
