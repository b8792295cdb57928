"""Which neurons are redundant, and that the others take over for them."""

import numpy as np
import pytest

from matex_tf.core import world
from matex_tf.dynamics import apoptosis, choose, schedule, surgery
from matex_tf.dynamics.growth import Growth
from matex_tf.dynamics.measure import Rows, loss_of, measure
from matex_tf.settings import SettingError, Settings


@pytest.fixture
def planted():
    """A network of 12 neurons, of which one is dead, one is always the same, and one is three times another."""
    import keras

    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(12, "relu", name="hidden"), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    kernel, bias = (np.array(value) for value in model.layers[0].get_weights())
    kernel[:, 2], bias[2] = -0.001, -100.0
    kernel[:, 5], bias[5] = 0.0, 1.7
    kernel[:, 9], bias[9] = 3 * kernel[:, 4], 3 * bias[4]
    model.layers[0].set_weights([kernel, bias])
    x = np.random.default_rng(0).normal(size=(512, 6)).astype("float32")
    y = np.random.default_rng(1).normal(size=(512, 3)).astype("float32")
    return model, Rows(x, y, None, 512)


def alone(array, what):
    return array


def test_planted_neurons_go_first(planted):
    """Dead, constant and proportional ones, for nothing; what the model gives stays."""
    model, rows = planted
    groups = surgery.channel_groups(model)
    measured = measure(groups, [rows], alone)
    (found,) = choose.candidates(groups, measured)
    assert set(found.order[:3]) <= {2, 5, 4, 9} and {2, 5} <= set(found.order[:3])
    assert max(found.rise[:3]) < 0.05 * found.rise[3]  # a ridge makes H invertible
    before = np.asarray(model(rows.x))
    for variable, value in choose.weights_without(groups, measured, {"hidden": found.order[:3]}):
        variable.assign(value)
    surgery.remove(model, {"hidden": found.order[:3]})
    np.testing.assert_allclose(model(rows.x), before, atol=2e-3 * np.abs(before).max())


def test_estimate_is_what_happens(planted):
    """The change of the outputs that the formula has is that which comes, for the neurons that go last too."""
    model, rows = planted
    groups = surgery.channel_groups(model)
    measured = measure(groups, [rows], alone)
    (found,) = choose.candidates(groups, measured)
    before = np.asarray(model(rows.x))
    squares = next(iter(measured.readers.values())).squares / measured.rows
    for variable, value in choose.weights_without(groups, measured, {"hidden": found.order[:8]}):
        variable.assign(value)
    change = ((np.asarray(model(rows.x)) - before) ** 2).mean(0)
    assert 0.5 * change @ squares == pytest.approx(sum(found.rise[:8]), rel=0.02)


def test_a_removal_that_costs_more_is_taken_back(planted):
    """With no tolerance and no redundant neurons all weights are as before."""
    model, rows = planted
    surgery.remove(model, {"hidden": [2, 5, 9]})
    weights = [np.array(weight) for weight in model.get_weights()]
    with world.use(world.World()):
        assert apoptosis.remove_redundant(model, [rows], [rows], 1e-9) is None
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_removal_keeps_to_its_tolerance(planted):
    model, rows = planted
    with world.use(world.World()):
        removal = apoptosis.remove_redundant(model, [rows], [rows], 0.02)
    assert removal.channels["hidden"] >= 3 and removal.after <= 1.02 * removal.before
    assert loss_of(model, [rows], alone) == pytest.approx(removal.after, rel=1e-5)
    assert "neurons taken out" in str(removal)


def test_growth_reaches_the_blueprint():
    import keras

    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(40, "relu", name="a"),
            keras.layers.Dense(10, name="b"),
            keras.layers.Dense(2),
        ]
    )
    growth = Growth.begin(model, 0.25)
    assert [layer.units for layer in model.layers] == [10, 4, 2]
    rows = np.random.default_rng(0).normal(size=(20, 6)).astype("float32")
    before = np.asarray(model(rows))
    while growth.grow(model):
        np.testing.assert_allclose(model(rows), before, atol=1e-5)
    assert [layer.units for layer in model.layers] == [40, 10, 2]
    assert growth.grow(model, 1.5) and model.layers[0].units == 60
    growth.has_enough(model, ["a"])
    assert not growth.grow(model, 3.0) or model.layers[0].units == 60


def test_looks_come_later_where_the_loss_is_flat():
    looks = schedule.Schedule.of(1000)
    assert looks.next == 200 and looks.progress(1.0) is None and looks.progress(0.5) == 0.5
    looks.go_on(falling=True)
    assert looks.next == 400
    looks.go_on(falling=False)
    assert looks.next == 700
    assert schedule.Schedule.of(40).next == 20


@pytest.mark.parametrize(
    "given",
    [
        {"strategy": "local"},
        {"strategy": "pipe"},
        {"strategy": "gossip"},
        {"faults": "restart"},
        {"faults": "shrink"},
        {"reproducible": "4"},
    ],
)
def test_what_does_not_go_together(given):
    with pytest.raises(SettingError, match="--apoptosis and --.* do not go together"):
        Settings.read({"apoptosis": "on", **given}, {})
    with pytest.raises(SettingError, match="--grow and --.* do not go together"):
        Settings.read({"grow": "on", **given}, {})


def test_widths_to_grow_from():
    with pytest.raises(SettingError, match="--grow-from is 2; it must be above 0 and at most 1"):
        Settings.read({"grow": "on", "grow_from": "2"}, {})
