"""The built-in networks of `matex-tf label`: what they learn from, augmentation, FixMatch, every kind of images."""

import numpy as np
import pytest

from tests.features.label.label_server import discs

pytestmark = pytest.mark.variants(0)


@pytest.fixture(scope="module")
def network():
    from matex_tf.features.label.network import learner

    return learner


def learner(network, images, semi=True, threshold=0.95, augment="shift", **more):
    import keras

    keras.utils.set_random_seed(0)
    return network.Learner(images, 2, augment, semi, threshold, 0, **more)


def test_rows_of_a_batch(network):
    """Each class as often as the others, each image of it in its turn; the unlabelled ones are any."""
    labels = np.full(100, -1)
    labels[:10], labels[10:13] = 0, 1
    numbers, answers = network.batches(labels, np.arange(13), 6, 8, 0)
    assert numbers.shape == (48, 3) and (labels[numbers[:, 0]] == answers).all()
    assert (answers == 0).sum() == (answers == 1).sum() == 24
    counts = np.bincount(numbers[:, 0], minlength=13)
    assert set(counts[10:13]) == {8} and set(counts[:10]) <= {2, 3}
    assert len(np.unique(numbers[:, 1:])) > 60


@pytest.mark.parametrize("augment", ["none", "shift", "flip", "rotate"])
def test_augmentation(network, augment):
    """Slight: what the name says, and no more. Strong: something else, of the same shape and range."""
    import tensorflow as tf

    image = np.zeros((1, 17, 17, 1), np.float32)
    image[0, 8, 3:14] = image[0, 8:12, 13] = 1  # an L, in the middle
    middle = np.full((1, 12), 0.5, np.float32)  # draws that move and turn nothing
    change = network.Augment(augment)
    assert np.allclose(change(tf.constant(image), middle, strong=False), image, atol=1e-4)
    mirrored = np.array(middle)
    mirrored[0, 2] = 0.1
    found = change(tf.constant(image), mirrored, strong=False)
    same = augment in ("none", "shift")
    assert np.allclose(found, image if same else image[:, :, ::-1], atol=1e-4)
    moved = np.array(middle)
    moved[0, 4] = 1.0
    found = np.asarray(change(tf.constant(image), moved, strong=False))
    assert np.allclose(found, image, atol=1e-4) == (augment == "none")
    turned = np.array(middle)
    turned[0, 0] = 0.75  # a quarter of a turn
    found = np.asarray(change(tf.constant(image), turned, strong=False))
    assert np.allclose(found, image, atol=1e-4) == (augment != "rotate")
    strong = np.asarray(change(tf.constant(image), np.full((1, 12), 0.8, np.float32), strong=True))
    assert strong.shape == image.shape and not np.allclose(strong, image, atol=0.1)


def test_fixmatch(network):
    """The loss of a step is that of section 2.2 with a weight, computed here from what the network says."""
    import keras
    import tensorflow as tf

    images = discs(60)[0][..., None]
    one = learner(network, images, threshold=0.5, augment="none")
    numbers, labels = np.arange(12).reshape(4, 3).astype(np.int32), np.array([0, 1, 0, 1], np.int32)
    one.compile(optimizer=keras.optimizers.SGD(0.0))
    for layer in one.body.layers:  # statistics of a batch would make what is said of an image depend on others
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    state = one.draws.state.numpy()
    one.weight.assign(0.75)
    found = one.train_step((tf.constant(numbers), tf.constant(labels)))
    one.draws.state.assign(state)
    draws = keras.random.uniform((4, 5, 12), seed=one.draws)

    def say(pixels):
        return tf.nn.softmax(one.head(one.body(pixels, training=False))).numpy()

    own = say(one.pixels(numbers[:, 0]))
    supervised = -np.log(own[np.arange(4), labels])
    flat = numbers[:, 1:].reshape(-1)
    weak = say(one.pixels(flat))
    strong = say(one.augment(one.pixels(flat), tf.reshape(draws[:, 3:], [-1, 12]), strong=True))
    sure = weak.max(axis=1) >= 0.5
    unsupervised = np.where(sure, -np.log(strong[np.arange(8), weak.argmax(axis=1)]), 0).reshape(4, 2).mean(axis=1)
    assert float(found["loss"]) == pytest.approx((supervised + 0.75 * unsupervised).mean(), rel=1e-4)
    assert float(found["used"]) == pytest.approx(sure.mean())


def test_weight_of_fixmatch(network):
    """Images without a label weigh nothing at first, and then what the network was sure of in the epoch before."""
    import keras

    images, kind = discs(60)
    one, told = learner(network, images[..., None], threshold=0.501), []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: told.append(float(one.weight.numpy())),
        on_epoch_end=lambda epoch, logs: told.append(logs["used"]),
    )
    one.learn(kind, np.arange(20), np.arange(20, 30), 12, 8, 3, 0, [note])
    begun, sure = told[0::2], told[1::2]
    assert begun == pytest.approx([0.0, *sure[:2]]) and 0 < sure[0] < 1
    assert float(one.weight.numpy()) == pytest.approx(sure[2])


@pytest.mark.parametrize("semi", [False, True])
def test_images_are_learned(network, semi):
    """From 40 labels of 400 discs and squares; a round goes on from the one before."""
    images, kind = discs(400)
    one = learner(network, images[..., None], semi=semi)
    labels = np.where(np.arange(400) < 40, kind, -1)
    held = np.arange(0, 40, 5)
    use = np.setdiff1d(np.arange(40), held)
    for seed in range(3):
        one.learn(labels, use, held, 60, 16, 3, seed)
    said, features = one.answers()
    assert said.shape == (3, 400, 2) and features.shape == (400, 64)
    assert np.allclose(said.sum(axis=2), 1, atol=1e-3)
    assert (said.mean(axis=0).argmax(axis=1) == kind)[40:].mean() > 0.85
    one.change(not semi, 0.9)
    one.learn(labels, use, held[:0], 60, 16, 1, 3)
    assert (one.answers()[0].mean(axis=0).argmax(axis=1) == kind)[40:].mean() > 0.85


def test_other_classes(network, tmp_path):
    """From a round to the next the body goes on: with the same classes, with others, and with FixMatch switched."""
    from matex_tf.features.label import rounds
    from matex_tf.features.label.network import train

    images, kind = discs(60)
    np.save(tmp_path / "images.npy", images[..., None])
    trainer, bodies = train.Trainer(), []
    forms = [(["disc", "square"], True), (["disc", "square"], False), (["disc", "square", "ring"], False)]
    for number, (classes, semi) in enumerate(forms, 1):
        labels = np.where(np.arange(60) < 20, kind, -1)
        labels[:2] = len(classes) - 1
        task = rounds.Task(classes, semi=semi, steps=5, batch=4, augment="shift", seed=number)
        place = rounds.begin(tmp_path, number, task, labels, np.zeros(60, bool))
        learner = trainer._prepare(rounds.read(place))
        bodies.append([weight.copy() for weight in learner.body.get_weights()])
        if number > 1:
            assert all(np.array_equal(a, b) for a, b in zip(bodies[-1], after, strict=True))  # noqa: F821
        trainer.round(rounds.read(place))
        after = trainer._learner.body.get_weights()
        assert np.load(place / "suggestions.npy").shape == (60, len(classes))
        assert not np.array_equal(after[0], bodies[-1][0])


def test_a_table(network):
    """Rows of numbers."""
    chance = np.random.default_rng(0)
    kind = chance.integers(0, 2, 300)
    rows = (chance.normal(size=(300, 12)) + 1.5 * kind[:, None] * (np.arange(12) < 4)).astype(np.float32)
    one = learner(network, rows)
    labels = np.where(np.arange(300) < 40, kind, -1)
    one.learn(labels, np.arange(40), np.arange(0), 100, 16, 1, 0)
    assert (one.answers()[0].mean(axis=0).argmax(axis=1) == kind)[40:].mean() > 0.8


def test_a_backbone(network, tmp_path):
    """A network of keras.applications on grey images, with the weights of a file; of others it says whose they are."""
    import keras

    from matex_tf.errors import MatexError

    grey = np.random.default_rng(0).integers(0, 255, (12, 32, 32, 1)).astype(np.uint8)
    given = keras.applications.MobileNetV2(include_top=False, weights=None, input_shape=(64, 64, 3))  # of another size
    given.save_weights(tmp_path / "mine.weights.h5")
    keras.applications.MobileNet(include_top=False, weights=None).save_weights(tmp_path / "other.weights.h5")
    one = learner(network, grey, backbone="MobileNetV2", augment="rotate", weights=str(tmp_path / "mine.weights.h5"))
    inside = next(layer for layer in one.body.layers if isinstance(layer, keras.Model))
    assert all(np.array_equal(a, b) for a, b in zip(inside.get_weights(), given.get_weights(), strict=True))
    one.learn(np.arange(12) % 2, np.arange(12), np.arange(0), 2, 4, 1, 0)
    assert one.answers()[0].shape == (3, 12, 2)
    for name, weights, message in (
        ("MobileNetV2", "other.weights.h5", "cannot be read as weights of MobileNetV2 without its top"),
        ("MobileNetV2", "none.weights.h5", "none.weights.h5"),
        ("MobileNet99", "", "keras.applications has no such class"),
    ):
        with pytest.raises(MatexError, match=message):
            learner(network, grey, backbone=name, weights=weights and str(tmp_path / weights))
