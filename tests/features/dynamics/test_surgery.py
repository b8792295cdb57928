"""Neurons are taken out of models and put into them: no output changes, and all that belongs to them follows."""

import networks
import numpy as np
import pytest

from matex_tf.features.dynamics import surgery

SHOWN = [networks.resnet, *networks.MAKERS, networks.mobilenet]


def given(model, rows):
    return np.asarray(model(rows, training=False))


@pytest.mark.variants(2)
@pytest.mark.parametrize("make", SHOWN, ids=lambda make: make.__name__)
def test_outputs_stay(make):
    """What nothing reads goes, channels are split and drawn anew: to 1e-6 of what the model gave before."""
    model = networks.weathered(make())
    rows, chosen = networks.rows_for(model), networks.silence(model)
    before, count = given(model, rows), model.count_params()
    surgery.remove(model, chosen)
    np.testing.assert_allclose(given(model, rows), before, rtol=0, atol=1e-6)
    assert model.count_params() < count
    for how in ("split", "new"):
        less = model.count_params()
        more = {group.name: group.count // 2 + 1 for group in surgery.channel_groups(model) if not group.together}
        surgery.add(model, more, np.random.default_rng(1), how)
        np.testing.assert_allclose(given(model, rows), before, rtol=0, atol=2e-6)
        assert model.count_params() > less


def test_what_is_tied():
    """The residual stream of a transformer is one group, and goes through LayerNormalization; heads and hidden units
    are groups of their own."""
    groups = {group.name: group for group in surgery.channel_groups(networks.transformer())}
    stream, *others = groups.values()
    assert len(stream.layers) == 5 and stream.together and stream.count == 16  # an embedding, and what is added to it
    assert [(group.count, group.together) for group in others] == [(4, False), (32, False)] * 2


@pytest.mark.parametrize("groups", [2, 3, 6])
def test_a_convolution_in_groups(groups):
    """Of one channel each: they go with what they read. Of several: a channel goes from each, and comes to each."""
    import keras

    layers = [
        keras.layers.Conv2D(6, 1, name="six"),
        keras.layers.BatchNormalization(),
        keras.layers.Conv2D(12, 3, groups=groups, name="grouped"),
        keras.layers.Conv2D(2, 1, name="last"),
    ]
    model = networks.weathered(keras.Sequential([keras.Input((8, 8, 3)), *layers]))
    rows = networks.rows_for(model)
    grouped, found = model.get_layer("grouped"), surgery.channel_groups(model)
    assert not found.left_whole
    assert found["six"].count == (6 if groups == 6 else 6 // groups)
    if groups != 6:
        assert found["grouped"].count == 12 // groups
        before = given(model, rows)
        surgery.add(model, {"six": 1, "grouped": 2}, np.random.default_rng(1))
        assert (grouped.groups, grouped.filters) == (groups, 12 + 2 * groups)
        np.testing.assert_allclose(given(model, rows), before, atol=1e-6)
        kernel, last = np.asarray(grouped.kernel), model.get_layer("last")
        last.kernel.assign(np.asarray(last.kernel) * (np.arange(grouped.filters) % (12 // groups + 2) != 1)[:, None])
        before = given(model, rows)
        surgery.remove(model, {"grouped": [1]})
        assert grouped.kernel.shape == (3, 3, 6 // groups + 1, 12 + groups)
        np.testing.assert_allclose(given(model, rows), before, atol=1e-6)
        each = kernel.reshape(*kernel.shape[:3], groups, -1)
        np.testing.assert_array_equal(grouped.kernel, np.delete(each, 1, -1).reshape(grouped.kernel.shape))
        again = keras.models.clone_model(model)
        again.set_weights(model.get_weights())
        np.testing.assert_allclose(given(again, rows), before, atol=1e-6)
    else:
        surgery.remove(model, {"six": [0, 4]})
        assert (grouped.groups, grouped.filters, grouped.kernel.shape) == (4, 8, (3, 3, 1, 8))
    assert surgery.channel_groups(model)["six"].count == (4 if groups == 6 else 6 // groups + 1)


def test_normalization_in_groups():
    """A group of one channel is by itself; of several a channel goes from each, and what is left is normalized anew."""
    import keras

    layers = [
        keras.layers.Conv2D(6, 1, name="six"),
        keras.layers.GroupNormalization(groups=-1, name="each"),
        keras.layers.Conv2D(9, 1, name="nine"),
        keras.layers.GroupNormalization(groups=3, name="thirds"),
        keras.layers.Conv2D(2, 1, name="last"),
    ]
    model = networks.weathered(keras.Sequential([keras.Input((4, 4, 3)), *layers]))
    rows, found = networks.rows_for(model), surgery.channel_groups(model)
    assert not found.left_whole
    assert [(one.name, one.count, one.together) for one in found] == [("six", 6, False), ("nine", 3, True)]
    before = given(model, rows)
    surgery.add(model, {"six": 2}, np.random.default_rng(1))
    np.testing.assert_allclose(given(model, rows), before, atol=1e-6)
    assert (model.get_layer("each").groups, model.get_layer("each").gamma.shape) == (8, (8,))
    with pytest.raises(surgery.SurgeryError, match="a normalization is computed over all of them together"):
        surgery.add(model, {"nine": 1}, np.random.default_rng(1))
    gamma = np.asarray(model.get_layer("thirds").gamma)
    surgery.remove(model, {"nine": [1]})
    thirds = model.get_layer("thirds")
    assert (thirds.groups, model.get_layer("nine").filters) == (3, 6)
    np.testing.assert_array_equal(thirds.gamma, gamma[[0, 2, 3, 5, 6, 8]])
    again = keras.models.clone_model(model)
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(given(again, rows), given(model, rows))


def test_scales_of_channels():
    """The scales of ConvNeXt go with their channels, and Normalization leaves alone what it has constants of."""
    import keras
    from keras.src.applications.convnext import LayerScale, StochasticDepth

    inputs = keras.Input((4, 4, 3))
    x = keras.layers.Conv2D(6, 1, name="six")(keras.layers.Normalization(mean=[1, 2, 3], variance=[1, 2, 4])(inputs))
    x = StochasticDepth(0.1)(LayerScale(0.5, 6, name="scale")(x))
    x = keras.layers.Conv2D(5, 1, name="five")(keras.layers.Normalization(axis=None, mean=0.5, variance=2.0)(x))
    x = keras.layers.Normalization(mean=[1.0] * 5, variance=[2.0] * 5, name="of_five")(x)
    model = networks.weathered(keras.Model(inputs, keras.layers.Conv2D(2, 1)(x)))
    rows, found = networks.rows_for(model), surgery.channel_groups(model)
    assert found.left_whole == {"of_five": "its constants are those of certain channels"}
    assert [group.name for group in found] == ["six"]
    before, five = given(model, rows), model.get_layer("five")
    surgery.add(model, {"six": 3}, np.random.default_rng(1))
    np.testing.assert_allclose(given(model, rows), before, atol=1e-6)
    five.kernel.assign(np.asarray(five.kernel) * (np.arange(9) != 2)[:, None])
    before = given(model, rows)
    surgery.remove(model, {"six": [2]})
    np.testing.assert_allclose(given(model, rows), before, atol=1e-6)
    scale = model.get_layer("scale")
    assert scale.projection_dim == 8 and scale.gamma.shape == (8,)
    np.testing.assert_allclose(given(keras.models.clone_model(model), rows).shape, before.shape)


@pytest.mark.variants(1)
@pytest.mark.parametrize("make", networks.MAKERS, ids=lambda make: make.__name__)
def test_training_goes_on(make, tmp_path):
    """Right after a change: fit with what the optimizer knew, weights in files, and models saved, loaded and cloned."""
    import keras

    keras.utils.set_random_seed(1)
    model = networks.weathered(make())
    rows = networks.rows_for(model)
    kernels = [group.made_by()[0].variable for group in surgery.channel_groups(model)]
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-3, use_ema=True))
    model.compile(optimizer, "mse", metrics=["mae"])
    targets = np.zeros_like(given(model, rows))
    model.fit(rows, targets, epochs=2, verbose=0)
    surgery.remove(model, {group.name: [0] for group in surgery.channel_groups(model)})
    assert [id(group.made_by()[0].variable) for group in surgery.channel_groups(model)] == list(map(id, kernels))
    inner = optimizer.inner_optimizer
    for slots in (inner._momentums, inner._velocities, inner._model_variables_moving_average):
        assert [slot.shape for slot in slots] == [variable.shape for variable in inner._trainable_variables]
    assert any(np.asarray(slot).any() for slot in inner._momentums)
    after = given(model, rows)
    np.testing.assert_allclose(model.predict(rows, verbose=0), after, atol=1e-5)
    assert np.isfinite(model.fit(rows, targets, verbose=0).history["loss"][0])
    assert model.evaluate(rows, targets, verbose=0, return_dict=True)["mae"] >= 0
    model.save_weights(tmp_path / "some.weights.h5")
    model.load_weights(tmp_path / "some.weights.h5")
    model.summary(print_fn=lambda *args, **kwargs: None)
    if make is networks.subclassed:
        return
    after = given(model, rows)
    model.save(tmp_path / "model.keras")
    loaded, copy = keras.models.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    for other in (loaded, copy):
        np.testing.assert_allclose(given(other, rows), after, atol=1e-6)
        assert other.output_shape == model.output_shape
        assert [tuple(layer.output.shape) for layer in other.layers] == [
            tuple(layer.output.shape) for layer in model.layers
        ]
    np.testing.assert_array_equal(loaded.optimizer.inner_optimizer._momentums[0], inner._momentums[0])


def test_optimizer_remembers_what_is_left():
    """The moments of the units that stay are theirs as before; moving averages are split as the weights are."""
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.compile(keras.optimizers.Adam(use_ema=True), "mse")
    model.fit(np.ones((8, 3)), np.zeros((8, 2)), verbose=0)
    first, second = (np.asarray(model.optimizer._momentums[number]) for number in (0, 2))
    surgery.remove(model, {model.layers[0].name: [1]})
    np.testing.assert_array_equal(model.optimizer._momentums[0], np.delete(first, 1, 1))
    np.testing.assert_array_equal(model.optimizer._momentums[2], np.delete(second, 1, 0))
    average = np.asarray(model.optimizer._model_variables_moving_average[2])
    surgery.add(model, {model.layers[0].name: [0]}, np.random.default_rng(0))
    new = np.asarray(model.optimizer._model_variables_moving_average[2])
    np.testing.assert_allclose(new[0] + new[3], average[0], rtol=1e-6)


def test_unknown_layers_are_left_whole():
    """A layer that nobody knows keeps what it reads and gives, and is named with a reason."""
    import keras
    import tensorflow as tf

    class Sorted(keras.layers.Layer):
        def call(self, x):
            return tf.sort(x)

        def compute_output_shape(self, shape):
            return shape

    rows = keras.Input((5,))
    x = keras.layers.Dense(7, name="before")(keras.layers.Dense(6, name="far")(rows))
    model = keras.Model(rows, keras.layers.Dense(2)(Sorted(name="sorted")(x)))
    groups = surgery.channel_groups(model)
    assert [group.name for group in groups] == ["far"]
    assert "does not take symbolic tensors" in groups.left_whole["sorted"]
    with pytest.raises(surgery.SurgeryError, match="no channels named before that could change; those that could: far"):
        surgery.remove(model, {"before": [0]})


def test_what_reads_inputs_alone():
    """A layer that nobody knows takes nothing away there: it is not named. One with weights is, as its units stay."""
    import keras
    import tensorflow as tf

    class Scaled(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(3, 3))

        def call(self, x):
            return tf.linalg.matmul(tf.sort(x), self.scale)

        def compute_output_shape(self, shape):
            return shape

    first, last = [keras.layers.RandomFlip(), keras.layers.RandomZoom(0.1)], [keras.layers.Conv2D(4, 3, name="four")]
    end = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)]
    groups = surgery.channel_groups(keras.Sequential([keras.Input((8, 8, 3)), *first, *last, *end]))
    assert [group.name for group in groups] == ["four"] and not groups.left_whole
    groups = surgery.channel_groups(keras.Sequential([keras.Input((8, 8, 3)), Scaled(name="scaled"), *last, *end]))
    assert [group.name for group in groups] == ["four"] and "scaled" in groups.left_whole


def test_refusals():
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="two"), keras.layers.Dense(1)])
    with pytest.raises(surgery.SurgeryError, match="two would have no channel left"):
        surgery.remove(model, {"two": [0, 1]})
    with pytest.raises(surgery.SurgeryError, match="two has channels 0 to 1, not 5"):
        surgery.remove(model, {"two": [0, 5]})
    surgery.remove(model, {"two": [0]})
    with pytest.raises(surgery.SurgeryError, match="two has one channel alone"):
        surgery.add(model, {"two": 1}, np.random.default_rng(0))
    stream = next(iter(surgery.channel_groups(transformer := networks.transformer()))).name
    with pytest.raises(surgery.SurgeryError, match="a normalization is computed over all of them"):
        surgery.add(transformer, {stream: 1}, np.random.default_rng(0))
