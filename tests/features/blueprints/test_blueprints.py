"""Ranges, draws, files of blueprints, and which candidates go on."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matex_tf import Blueprint
from matex_tf.errors import MatexError, SettingError
from matex_tf.features.blueprints import command as grow
from matex_tf.features.blueprints import halving, source
from matex_tf.features.blueprints.ranges import parse


@pytest.mark.parametrize(
    ("text", "low", "high", "log", "whole"),
    [
        ("32..512", 32, 512, True, True),
        ("1..4", 1, 4, False, True),
        ("1..4 log", 1, 4, True, True),
        ("32..512 linear", 32, 512, False, True),
        ("1e-4..1e-2", 1e-4, 1e-2, True, False),
        ("0..0.5", 0, 0.5, False, False),
        ("-3..3", -3, 3, False, True),
    ],
)
def test_a_range_is_read(text, low, high, log, whole):
    one = parse("x", text)
    assert (one.low, one.high, one.log, one.whole, one.choices) == (low, high, log, whole, ())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("512..32", "x goes from 512 to 32: the smaller end comes first"),
        ("0..8 log", "x begins at 0, which has no logarithm"),
        ("3..", "x is '3..'; a range looks like 32..512"),
        ("a..b", "a range looks like"),
        ([], "x is an empty list"),
        ({"from": 3}, "it must be a range as 32..512"),
        ({"choice": 3}, "it must be a list"),
    ],
)
def test_what_cannot_be_a_range_is_named(value, said):
    with pytest.raises(SettingError, match=said.replace(".", r"\.").replace("(", r"\(")):
        parse("x", value)


@given(
    st.integers(1, 1000),
    st.integers(0, 1000),
    st.sampled_from(["", " log", " linear"]),
    st.integers(1, 40),
    st.integers(0, 9),
)
def test_draws_lie_in_their_range_and_apart(low, more, scale, of, seed):
    """Each of as many equal parts of a range has one candidate."""
    one = parse("x", f"{low}..{low + more}{scale}")
    values = [one.draw("x", number, of, seed) for number in range(of)]
    assert all(isinstance(value, int) and low <= value <= low + more for value in values)
    if more >= 2 * of and scale == " linear":
        parts = sorted(min(int((value - low) * of / (more + 1)), of - 1) for value in values)
        assert all(abs(part - place) <= 1 for place, part in enumerate(parts))


def test_a_step_is_kept_and_choices_come_equally_often():
    assert {parse("x", "32..96 step 32").draw("x", k, 30, 0) for k in range(30)} == {32, 64, 96}
    drawn = [parse("x", ["relu", "gelu"]).draw("x", k, 10, 3) for k in range(10)]
    assert drawn.count("relu") == 5


def test_defaults():
    assert [parse("x", value).default for value in ("1..4", "1e-4..1e-2", ["relu", "gelu"], 64)] == [
        4,
        1e-3,
        "relu",
        64,
    ]


CONFIG = {
    "class_name": "Sequential",
    "config": {
        "name": "net",
        "layers": [
            {"class_name": "InputLayer", "config": {"name": "input", "batch_shape": [None, 8]}},
            {
                "name": "block",
                "repeat": "1..3",
                "layers": [
                    {
                        "class_name": "Dense",
                        "config": {"name": "dense", "units": "4..64", "activation": ["relu", "gelu"]},
                    }
                ],
            },
            {"class_name": "Conv2D", "config": {"name": "conv", "kernel_size": [3, 3], "filters": {"choice": [8, 16]}}},
        ],
    },
}


def test_ranges_of_a_config_are_named_by_their_layers():
    """A list of numbers is a value of Keras'; what is repeated has names of its own."""
    assert list(source.ranges(CONFIG)) == ["block.repeat", "dense.units", "dense.activation", "conv.filters"]
    layers = source.resolve(CONFIG, {"block.repeat": 2, "dense.units": 7})["config"]["layers"]
    assert [layer["config"]["name"] for layer in layers] == ["input", "dense", "dense_1", "conv"]
    assert layers[2]["config"] == {"name": "dense_1", "units": 7, "activation": "relu"}
    assert layers[3]["config"] == {"name": "conv", "kernel_size": [3, 3], "filters": 8}
    assert CONFIG["config"]["layers"][1]["repeat"] == "1..3"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{", "cannot be read"),
        ("a.json", "[1]", "must have names and ranges"),
        ("a.yaml", "units: [", "cannot be read"),
        ("a.yaml", "", "must have names and ranges"),
        ("a.json", '{"class_name": "Sequential", "config": {}}', "has no ranges"),
    ],
)
def test_a_file_that_is_no_blueprint(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingError, match=said):
        source.ranges(source.read(str(tmp_path / name)))


def test_a_blueprint_of_a_script_that_runs_by_itself(tmp_path):
    """The defaults: one whole training."""
    (tmp_path / "net.yaml").write_text("units: 32..512\nblocks: 1..4\nactivation: [relu, gelu]\n")
    blueprint = Blueprint(str(tmp_path / "net.yaml"))
    assert blueprint.values == {"units": 512, "blocks": 4, "activation": "relu"}
    assert blueprint.model(lambda units, blocks, activation: (units, blocks, activation)) == (512, 4, "relu")
    with pytest.raises(MatexError, match="give model"):
        blueprint.model()

    def build(hp):
        depth = hp.Int("blocks", 1, 3, default=2)
        return depth, hp.Choice("activation", ["relu", "gelu"]), hp.Float("rate", 1e-4, 1e-2), hp.Boolean("norm")

    blueprint = Blueprint(build)
    assert blueprint.model() == (2, "relu", 1e-3, False)
    assert blueprint.values == {"blocks": 2, "activation": "relu", "rate": 1e-3, "norm": False}


def test_an_hp_that_is_wrong_is_named():
    with pytest.raises(SettingError, match="sampling='wide'; it can be linear or log"):
        Blueprint(lambda hp: hp.Int("units", 1, 2, sampling="wide")).model()
    with pytest.raises(SettingError, match="rate goes from 2 to 1"):
        Blueprint(lambda hp: hp.Float("rate", 2, 1)).model()


def halved(count, epochs, quality, fails=(), brackets=1):
    """Halve candidates of which each has a quality; what each was trained."""
    trained = {}

    def train(alive, part):
        for one in alive:
            if one.number in fails:
                one.failed = "no memory"
                continue
            done = max(1, math.ceil(epochs * part))
            trained[one.number] = done
            one.epochs.append(done)
            one.scores.append(quality[one.number])
        return 1.0

    order, rungs = halving.halve(count, train, lambda: epochs, brackets=brackets)
    return order, rungs, trained


def test_the_worse_half_stops():
    """Of 8 candidates and 8 epochs: 8 for one epoch, 4 for two, 2 for four, as in figure 3 of the paper."""
    quality = [3, 8, 1, 6, 2, 7, 5, 4]
    order, rungs, trained = halved(8, 8, quality)
    assert [(rung.until, len(rung.trained), len(rung.kept)) for rung in rungs] == [(1, 8, 4), (2, 4, 2), (4, 2, 1)]
    assert [quality[one.number] for one in order[:2]] == [8, 7]
    assert sorted(trained.values()) == [1, 1, 1, 1, 2, 2, 4, 4]


def test_few_epochs_are_not_trained_twice():
    order, rungs, trained = halved(8, 2, [1, 2, 3, 4, 5, 6, 7, 8])
    assert [rung.until for rung in rungs] == [1, 1, 1] and [rung.seconds for rung in rungs] == [1, 0, 0]
    assert order[0].number == 7 and set(trained.values()) == {1}


def test_more_candidates_than_epochs_still_double():
    """Of 16 candidates and 8 epochs eight train for two epochs: four of them are not chosen after one."""
    order, rungs, trained = halved(16, 8, list(range(16)))
    assert [(rung.until, len(rung.trained)) for rung in rungs] == [(1, 16), (2, 8), (4, 4), (4, 2)]
    assert [rung.seconds for rung in rungs] == [1, 1, 1, 0]
    assert sorted(trained.values()) == [1] * 8 + [2] * 4 + [4] * 4 and order[0].number == 15


@given(st.integers(1, 40), st.integers(1, 100), st.randoms())
def test_the_best_is_found_whatever_the_numbers(count, epochs, random):
    quality = list(range(count))
    random.shuffle(quality)
    order, rungs, _ = halved(count, epochs, quality)
    assert count == 1 or quality[order[0].number] == count - 1
    assert sorted(one.number for one in order) == list(range(count))
    assert all(len(rung.kept) == math.ceil(len(rung.trained) / 2) for rung in rungs)


def test_brackets_have_half_as_many_that_train_twice_as_long():
    """Hyperband with 8 candidates: brackets of 8, 4 and 2, which all end at half of the epochs."""
    assert halving.sizes(8, 5) == [8, 4, 2] and halving.sizes(1, 3) == [1]
    quality = [*range(8), 100, 9, 10, 11, 12, 13]  # the best is in the second bracket
    order, rungs, _ = halved(8, 16, quality, brackets=3)
    assert [(rung.until, len(rung.trained)) for rung in rungs] == [(2, 8), (4, 4), (8, 2), (4, 4), (8, 2), (8, 2)]
    assert order[0].number == 8 and len(order) == 14


def test_candidates_that_fail_never_go_on():
    order, rungs, _ = halved(4, 8, [1, 2, 3, 4], fails={2, 3})
    assert order[0].number == 1 and rungs[0].kept == [0, 1]
    with pytest.raises(MatexError, match="no candidate came to a score.*no memory"):
        halved(2, 8, [1, 2], fails={0, 1})


def test_hosts_are_dealt_out_to_groups():
    assert grow._divided("a:2,b:2", [2, 2]) == ["a:2", "b:2"]
    assert grow._divided("a:3,b:1", [2, 2]) == ["a:2", "a:1,b:1"]
    assert grow._divided("", [1, 1]) == ["", ""]
    with pytest.raises(SettingError, match="has room for 1 ranks, and -n says 2"):
        grow._divided("a", [1, 1])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py"], "there is no script train.py"),
        (["net.yaml"], "the blueprint net.yaml cannot be read"),
        (["--candidates", "0", "train.py"], "--candidates is '0'"),
        ([], "there is no script to run"),
    ],
)
def test_a_command_line_that_is_wrong(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match=said):
        grow.command(grow.parser().parse(words))


def test_what_is_kept_can_be_a_blueprint(tmp_path):
    """Values without ranges: what --keep has written."""
    (tmp_path / "best.json").write_text(json.dumps({"units": 32, "activation": "gelu"}))
    assert Blueprint(str(tmp_path / "best.json")).values == {"units": 32, "activation": "gelu"}


DEEP = 3000
BOMB = "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("itself.yaml", "a: &a {units: 32..64, b: *a}", "refers to itself"),
        ("list.yml", "a: &a [*a]", "refers to itself"),
        ("config.yaml", "class_name: Sequential\nconfig: &c {layers: [*c]}", "refers to itself"),
        ("deep.json", '{"a": ' * DEEP + "1" + "}" * DEEP, "deep"),
        ("lists.json", '{"a": ' + "[" * 500 + "]" * 500 + "}", "deep"),
        ("deep.yaml", "{a: " * DEEP + "1" + "}" * DEEP, "deep"),
        ("bomb.yaml", BOMB, "more than 1,000,000 values"),
    ],
)
def test_a_blueprint_without_end(tmp_path, name, text, words):
    """One that has itself as a part, nests very deep, or names a part again and again, is an error in words."""
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingError, match=rf"the blueprint .*{name} cannot be read: .*{words}"):
        source.read(str(tmp_path / name))
