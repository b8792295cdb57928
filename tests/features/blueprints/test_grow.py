"""`matex-tf grow` as users start it: candidates on groups of ranks, and what they must say."""

import json

import pytest
from jobs import LAUNCHER, Job

SCRIPT = """
import keras
import numpy as np
import sys
%s
random = np.random.RandomState(0)
x = random.normal(size=(96, 5)).astype("float32")
y = np.tanh(x @ random.normal(size=(5, 1))).astype("float32")
%s
model.compile(keras.optimizers.Adam(0.01), "mse")
model.fit(x, y, batch_size=12, epochs=4, validation_split=0.25, verbose=0)
print("ended:", sys.argv[1:], [layer.units for layer in model.layers], model.layers[0].activation.__name__)
"""
PLAIN = """
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
"""
WITH_HP = """
def build(hp):
    layers = [keras.layers.Dense(hp.Int("units", 2, 16), activation="relu") for _ in range(hp.Int("blocks", 1, 2))]
    return keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(1)])
model = matex_tf.Blueprint(build).model()
"""
CONFIG = {
    "class_name": "Sequential",
    "config": {
        "name": "net",
        "layers": [
            {
                "class_name": "InputLayer",
                "module": "keras.layers",
                "config": {"batch_shape": [None, 5], "name": "rows"},
            },
            {
                "repeat": "1..2",
                "name": "block",
                "layers": [
                    {
                        "class_name": "Dense",
                        "module": "keras.layers",
                        "config": {"name": "hidden", "units": "2..16", "activation": ["relu", "tanh"]},
                    }
                ],
            },
            {"class_name": "Dense", "module": "keras.layers", "config": {"name": "out", "units": 1}},
        ],
    },
    "module": "keras",
}
BY_CONFIG = 'model = keras.models.model_from_json(open("net.json").read())'


def grown(server, tmp_path, *words, script=SCRIPT % ("", PLAIN), code=0):
    (tmp_path / "script.py").write_text(script)
    ended = Job([LAUNCHER, "grow", "--seed", "3", "--json", "found.json", *words], tmp_path, **server.environ).end(240)
    assert ended.code == code, ended
    return ended, json.loads((tmp_path / "found.json").read_text()) if not code else None


def scores(found):
    return {one["number"]: one["scores"] for one in found["candidates"]}


@pytest.mark.variants(0)
@pytest.mark.timeout(300)
def test_groups_side_by_side(server, tmp_path):
    """The layers of an unmodified script get the values; the best runs on to the script's end, on both ranks."""
    (tmp_path / "net.yaml").write_text("dense.units: 2..16\ndense.activation: [relu, tanh]\n")
    words = ("--candidates", "4", "--keep", "best.json", "net.yaml", "script.py", "a", "b")
    ended, found = grown(server, tmp_path, "-n", "2", *words)
    best = found["candidates"][0]
    assert found["objective"] == "val_loss" and [rung["until"] for rung in found["rungs"]] == [1, 2]
    assert best["values"] == json.loads((tmp_path / "best.json").read_text())
    units, activation = best["values"]["dense.units"], best["values"]["dense.activation"]
    assert f"ended: ['a', 'b'] [{units}, 1] {activation}" in ended.out and ended.out.count("ended:") == 1
    assert sum(one["rows"] for one in found["candidates"]) == (4 + 2 + 2) * 96
    assert "rung 1 of 2: 4 candidates up to epoch 1 of 4" in ended.err and "2 groups of 1 rank" in ended.err
    assert [len(one["scores"]) for one in found["candidates"]] == [3, 2, 1, 1]
    assert best["scores"] == sorted(best["scores"], reverse=True), "a loss falls"


@pytest.mark.variants(0)
@pytest.mark.timeout(300)
def test_the_same_whatever_the_groups(server, tmp_path):
    """One group of two ranks finds what two groups of one rank find."""
    (tmp_path / "net.yaml").write_text("dense.units: 2..16\n")
    found = [
        grown(server, tmp_path, "-n", "2", "--groups", groups, "--candidates", "4", "net.yaml", "script.py")[1]
        for groups in ("1", "2")
    ]
    assert scores(found[0]).keys() == scores(found[1]).keys()
    for number, mine in scores(found[0]).items():
        assert mine == pytest.approx(scores(found[1])[number], rel=1e-4)


@pytest.mark.variants(0)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["hp", "config"])
def test_other_blueprints(server, tmp_path, how):
    """A function with `hp` in the script; a config of Keras that the script reads."""
    (tmp_path / "net.json").write_text(json.dumps(CONFIG))
    if how == "hp":
        _, found = grown(
            server, tmp_path, "-n", "1", "--candidates", "2", "script.py", script=SCRIPT % ("import matex_tf", WITH_HP)
        )
    else:
        words = ("-n", "1", "--candidates", "2", "net.json", "script.py")
        _, found = grown(server, tmp_path, *words, script=SCRIPT % ("", BY_CONFIG))
    names = {"units", "blocks"} if how == "hp" else {"block.repeat", "hidden.units", "hidden.activation"}
    assert all(set(one["values"]) == names for one in found["candidates"])


@pytest.mark.variants(0)
@pytest.mark.timeout(300)
def test_a_candidate_that_fails(server, tmp_path):
    """It is named, and the others go on in another job."""
    (tmp_path / "net.yaml").write_text("dense.units: [2, 3, -1, 4]\n")
    ended, found = grown(server, tmp_path, "-n", "1", "--candidates", "4", "net.yaml", "script.py")
    failed = [one for one in found["candidates"] if one["failed"]]
    assert len(failed) == 1 and failed[0]["values"] == {"dense.units": -1}
    assert f"candidate {failed[0]['number']} failed" in ended.err and found["candidates"][0]["failed"] == ""


@pytest.mark.variants(0)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("blueprint", "script", "said"),
    [
        ("units: 2..16", SCRIPT % ("", PLAIN), "nothing in the script has taken units of the blueprint"),
        ("dense.units: 2..16", SCRIPT.replace("validation_split=0.25, ", "") % ("", PLAIN), "give fit validation_data"),
        ("dense.units: 2..16", "print('nothing')", "without a fit of Keras 3"),
        ("dense.untis: 2..16", SCRIPT % ("", PLAIN), "takes no untis"),
    ],
)
def test_what_cannot_be(server, tmp_path, blueprint, script, said):
    (tmp_path / "net.yaml").write_text(blueprint)
    ended, _ = grown(server, tmp_path, "-n", "1", "--candidates", "2", "net.yaml", "script.py", script=script, code=1)
    assert said in ended.err
