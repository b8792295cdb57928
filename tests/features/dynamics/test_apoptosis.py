"""Which neurons are redundant, and that the others take over for them."""

import math

import networks
import numpy as np
import pytest

from matex_tf.core import world
from matex_tf.features.dynamics import apoptosis, changes, choose, depth, schedule, surgery
from matex_tf.features.dynamics.growth import Growth
from matex_tf.features.dynamics.measure import Loss, Rows, loss_of, measure
from matex_tf.features.dynamics.options import DynamicsOptions
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


def test_order_is_that_of_one_at_a_time(planted, monkeypatch):
    """Looking at many channels at once gives the order and the rises that looking at each alone gives."""
    model, rows = planted
    groups = surgery.channel_groups(model)
    measured = measure(groups, [rows], alone)
    (together,) = choose.candidates(groups, measured)
    monkeypatch.setattr(choose, "_AT_ONCE", 1)
    (each,) = choose.candidates(groups, measured)
    assert together.order == each.order
    np.testing.assert_allclose(together.rise, each.rise, rtol=1e-6, atol=1e-12)


@pytest.mark.variants(0)
def test_first_order_is_the_same_on_any_number_of_ranks():
    """A recurrent kernel is judged by the same chunks of a batch, whoever has their rows."""
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((5, 2)), keras.layers.LSTM(6, name="lstm"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(23, 5, 2)).astype("float32"), rng.normal(size=(23, 1)).astype("float32")
    groups = surgery.channel_groups(model)
    whole = measure(groups, [Rows(x, y, None, 23)], alone)
    own = []  # what each of three ranks adds up

    def summed(array, what):
        own.append(array)
        return sum(own)

    for low, high in ((0, 8), (8, 15), (15, 23)):
        parts = measure(groups, [Rows(x[low:high], y[low:high], None, high - low, low, 23)], summed)
    assert whole.first_order and parts.rows == whole.rows
    for number, expected in whole.first_order.items():
        np.testing.assert_allclose(parts.first_order[number], expected, rtol=1e-4)


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
    assert loss_of(Loss(model), [rows], alone) == pytest.approx(removal.after, rel=1e-5)
    assert "neurons taken out" in str(removal)


def test_a_removal_is_nearly_as_large_as_its_tolerance_allows(planted):
    """Though the estimate knows of one layer at a time."""
    model, rows = planted
    labels = np.asarray(model(rows.x)) + 0.1 * rows.y  # there is nothing left to learn but noise
    rows = Rows(rows.x, labels, None, rows.count)
    with world.use(world.World()):
        removal = apoptosis.remove_redundant(model, [rows], [rows], 4.0)
    assert 2.0 * removal.before < removal.after <= 5.0 * removal.before


def test_nothing_is_measured_where_nothing_may_go(planted, monkeypatch):
    """What was taken out before has to be learnt again first."""
    model, rows = planted
    monkeypatch.setattr(apoptosis, "measure", lambda *_: pytest.fail("the channels were measured"))
    with world.use(world.World()):
        assert apoptosis.remove_redundant(model, [rows], [rows], 0.02, best=1.0, now=1.5) is None


def test_a_removal_that_is_nearly_as_large_as_it_may_be_ends_the_search():
    """Each one that is tried costs an evaluation and the weights without its neurons."""
    search = apoptosis._Search(0.01)
    assert search.holds(0.001, 0.002) and not search.over
    assert not search.holds(0.02, 0.004) and not search.over
    assert search.holds(0.006, 0.003) and search.over


def test_an_estimate_that_is_far_too_low_is_corrected_at_once():
    """Of a network that has nearly fitted its rows everything seems to be redundant: gradients are nothing."""
    search = apoptosis._Search(0.01)
    assert not search.holds(0.02, 1e-9) and search.rise <= 5e-10 and not search.over
    assert not search.holds(0.02, 0.0) and search.over


@pytest.mark.parametrize(("untrained", "may"), [(0.0, 0.001), (float("nan"), 0.001), (-math.inf, 0.001), (10.0, 0.01)])
def test_a_loss_that_is_nearly_nothing_may_rise(planted, monkeypatch, untrained, may):
    """The tolerance is a part of the geometric mean of the lowest loss and of that of the untrained network."""
    model, rows = planted
    allowed = []
    monkeypatch.setattr(apoptosis, "_TRIES", 0)
    search = apoptosis._Search
    monkeypatch.setattr(apoptosis, "_Search", lambda rise: (allowed.append(rise), search(rise))[1])
    with world.use(world.World()):
        removed = apoptosis.remove_redundant(model, [rows], [rows], 0.01, best=0.1, now=0.1, untrained=untrained)
    assert removed is None and allowed == [pytest.approx(may)]


def test_what_a_removal_saves_is_counted_once():
    """A weight between two neurons that both go is one weight; a filter has one for each place that Flatten makes."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(8, 3, name="filters"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(10, name="units"),
            keras.layers.Dense(2),
        ]
    )
    gone = {"filters": [1, 2, 5], "units": [0, 7]}
    groups, before = surgery.channel_groups(model), model.count_params()
    saved = choose.saved_by(groups, gone, {id(part.variable): 1.0 for part in groups.analysis.parts})
    surgery.remove(model, gone)
    assert saved == before - model.count_params() > 0


def test_a_filter_is_worth_its_multiplications_too():
    """Half of what a weight is worth is its share of the weights, half that of a row's multiplications."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 1, use_bias=False, name="first"),
            keras.layers.Conv2D(4, 1, use_bias=False, name="second"),
            keras.layers.Flatten(),
            keras.layers.Dense(2, use_bias=False, name="last"),
        ]
    )
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    rows = Rows(rng.normal(size=(8, 6, 6, 1)).astype("float32"), rng.normal(size=(8, 2)).astype("float32"), None, 8)
    groups = surgery.channel_groups(model)
    each = choose.worth(groups, measure(groups, [rows], alone))
    _, second, last = (each[id(layer.kernel)] for layer in model.layers if layer.weights)
    weights, work = 4 + 16 + 288, 4 + 16 * 36 + 288  # the first reads no channels that could go
    for found, places in ((second, 36), (last, 1)):
        assert found == pytest.approx(0.5 + 0.5 * places * weights / work)
    assert sum(each[id(weight)] * np.prod(weight.shape) for weight in model.weights) == pytest.approx(weights)


def test_a_removal_that_saves_too_little_is_not_made(planted):
    model, rows = planted
    with world.use(world.World()):
        assert apoptosis.remove_redundant(model, [rows], [rows], 0.02, least=0.9 * model.count_params()) is None


def test_removals_add_up_to_the_tolerance():
    """What they cost is counted from the lowest loss; what training has made worse itself is not counted."""
    reference = schedule.Reference()
    reference.look(1.0)
    reference.removed(1.01)
    reference.look(1.01)
    assert reference.loss == 1.0  # a removal has cost all that it may
    reference.look(1.05)
    assert reference.loss == pytest.approx(1.04)  # the rest is overfitting
    reference.look(0.9)
    assert reference.loss == 0.9


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
    assert growth.over
    assert growth.grow(model, 1.5) and model.layers[0].units == 60


def test_growth_is_due_though_the_loss_falls():
    """Twice, the first time soon, until half of the training; there is nothing to wait for after that."""
    import keras

    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(40), keras.layers.Dense(2)])
    growth = Growth.begin(model, 0.25, by=0.5)
    assert growth.due == pytest.approx(0.5**2.5)
    growth.grow(model)
    assert growth.due == 0.5 and not growth.over
    growth.grow(model)
    assert growth.due == np.inf and growth.over
    assert not growth.grow(model) and growth.over


def test_with_both_the_network_grows_to_what_it_may_reach():
    """Apoptosis says later what of it does not pay: growth beyond the blueprint waits for nothing."""
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(64, 6)).astype("float32"), random.normal(size=(64, 1)).astype("float32")
    rows = Rows(x, y, None, 64)
    wanted = DynamicsOptions(apoptosis=True, grow=True, grow_to=4)
    units = []
    with world.use(world.World()):
        changing = changes.Changes(model, wanted, [rows], 100, lambda line: None, epochs=10)
        changing.begin()
        for _ in range(300):  # three tenths of the training
            if changing.wants_rows:
                changing.see(rows, 64)
            changing.after_step()
            units.append(model.layers[0].units)
    assert units[0] == 4 and max(units) == 64


def test_blocks_begin_later():
    """The second block of a transformer rests: it adds nothing, and costs next to nothing, until the network grows."""
    model = networks.weathered(networks.transformer())
    assert [len(names) for names in depth.repeated(surgery.channel_groups(model))] == [1, 1]  # heads, and hidden units
    whole = model.count_params()
    growth = Growth.begin(model, 0.5, by_depth=True)
    assert len(growth.waiting) == 2 and growth.steps == 2
    assert [group.count for group in surgery.channel_groups(model) if not group.together] == [4, 16, 2, 2]
    rows = networks.rows_for(model)
    before = np.asarray(model(rows))
    for told in ("16 neurons put in", "2 blocks begin, "):
        assert not growth.over
        assert growth.grow(model).startswith(told)
        np.testing.assert_allclose(model(rows), before, atol=1e-5)
    assert growth.over and model.count_params() == whole
    assert not growth.grow(model)


def test_blocks_that_rest_add_nothing():
    """Nothing is read from their channels; what they add is a bias that they have had before."""
    import keras

    inputs = stream = keras.Input((6,))
    stream = keras.layers.Dense(8, name="stream")(stream)
    for _ in range(3):
        stream = keras.layers.Add()([stream, keras.layers.Dense(8)(keras.layers.Dense(20, "relu")(stream))])
    model = keras.Model(inputs, [keras.layers.Dense(2)(stream), stream])
    growth = Growth.begin(model, 1.0, by_depth=True)
    assert len(growth.waiting) == 2
    assert [group.count for group in surgery.channel_groups(model)] == [20, 2, 2]  # the stream is an output
    rows = np.random.default_rng(0).normal(size=(20, 6)).astype("float32")
    first = keras.Model(inputs, [layer for layer in model.layers if "add" in layer.name][0].output)
    np.testing.assert_array_equal(model(rows)[1], first(rows))


def test_blocks_of_a_resnet():
    """The first block of each stage makes its stream, and the others repeat it."""
    blocks = depth.repeated(surgery.channel_groups(networks.resnet()))
    assert [len(names) for names in blocks] == [2] * (2 + 3 + 5 + 2)


def test_weights_of_other_channels_stay_in_a_kernel_that_reads_two_layers():
    import keras

    inputs = keras.Input((6,))
    wide, narrow = keras.layers.Dense(40, name="wide")(inputs), keras.layers.Dense(4, name="narrow")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, name="both")(keras.layers.Concatenate()([wide, narrow])))
    before = np.asarray(model.get_layer("both").kernel)
    Growth.begin(model, 0.25)
    after = np.asarray(model.get_layer("both").kernel)
    np.testing.assert_allclose(after[:10], 2 * before[:10])
    np.testing.assert_array_equal(after[10:], before[40:])


def test_new_neurons_learn_something_else():
    """They are no copies of those that are there."""
    import keras

    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(40), keras.layers.Dense(2)])
    growth = Growth.begin(model, 0.25)
    growth.grow(model)
    kernel = np.asarray(model.layers[0].kernel)
    kernel /= np.linalg.norm(kernel, axis=0)
    assert (kernel[:, :10].T @ kernel[:, 10:]).max() < 0.999
    np.testing.assert_array_equal(model.layers[1].kernel[10:], 0.0)


def test_looks_come_later_where_the_loss_is_flat():
    looks = schedule.Schedule.of(1600, 8)
    assert looks.next == 200 and looks.progress(1.0) is None and looks.progress(0.5) == 0.5
    looks.go_on(learning=True)
    assert looks.next == 400
    looks.go_on(learning=False)
    assert looks.next == 700
    assert schedule.Schedule.of(40).next == 20


def test_there_are_looks_at_each_tenth_of_a_training():
    """Where nobody knows how long it is, gaps grow up to 16 times the first one."""
    for epochs, steps in ((10, 1600), (0, 16 * 200)):
        looks = schedule.Schedule.of(1600, epochs)
        for _ in range(20):
            looks.go_on(learning=False)
        assert looks.gap == steps and looks.done(800) == (0.05 if epochs else 0.0)


def test_a_network_that_knows_nothing_is_left_alone():
    """At a plateau of the beginning too, but not for ever."""
    looks = schedule.Schedule.of(1000)
    looks.first = 1.0
    for loss in (0.99, 0.98, 0.98):
        assert looks.is_learning(loss, looks.progress(loss))
    assert looks.flat == 2  # nobody grows at this plateau, though
    assert looks.is_learning(0.5, looks.progress(0.5)) and not looks.flat  # falls fast
    assert looks.is_learning(0.49, looks.progress(0.49))  # one look may be noise
    assert not looks.is_learning(0.48, looks.progress(0.48))
    assert looks.is_learning(0.6, looks.progress(0.6))  # has jumped up
    for _ in range(4):
        looks.progress(0.9)
    assert not looks.is_learning(0.9, looks.progress(0.9))


def test_a_loss_that_falls_steadily_is_still_learnt():
    """Though it falls by little from one look to the next, until half of the training is over."""
    looks = schedule.Schedule.of(1000)
    for steps, learning in ((0, True), (2000, True), (1100, False)):
        looks.steps, looks.lowest, looks.last, looks.next = steps, [], None, 100
        for loss in (1.4, 1.35, 1.3, 1.25, 1.2, 1.16):
            learns = looks.is_learning(loss, looks.progress(loss))
            looks.next += 100
        assert learns == learning
    for loss in (1.15, 1.15, 1.14, 1.14, 1.13, 1.13):
        learns = looks.is_learning(loss, looks.progress(loss))
        looks.next += 100
    assert not learns


@pytest.mark.parametrize(
    "given",
    [
        {"strategy": "local"},
        {"strategy": "pipe"},
        {"strategy": "gossip"},
        {"faults": "restart"},
        {"faults": "shrink"},
        {"reproducible": "4"},
        {"shard": "state"},
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
