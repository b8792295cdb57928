"""How much a row matters: each word of `--prune-samples-by`, beside the same in NumPy."""

import keras
import numpy as np
import pytest

from matex_tf.errors import MatexError
from matex_tf.features.samples.patches.importance import MEASURES, Outputs

PROBABILITIES = np.random.RandomState(0).dirichlet([0.5] * 4, 12).astype("float32")
CLASSES = np.random.RandomState(1).randint(0, 4, 12)
ONE_HOT = np.eye(4, dtype="float32")[CLASSES]
EXPECTED = {
    "loss": -np.log(PROBABILITIES[np.arange(12), CLASSES]),
    "el2n": np.linalg.norm(PROBABILITIES - ONE_HOT, axis=1),
    "forgetting": (PROBABILITIES.argmax(1) == CLASSES).astype("float32"),
    "uncertainty": -(PROBABILITIES * np.log(PROBABILITIES)).sum(1),
}


def measured(by, loss, truth, predicted, mask=None):
    values = loss.call(keras.ops.convert_to_tensor(truth), keras.ops.convert_to_tensor(predicted))
    return np.asarray(MEASURES[by](Outputs(values, mask, loss, truth, keras.ops.convert_to_tensor(predicted))))


@pytest.mark.parametrize("by", EXPECTED)
def test_classes(by):
    """The same of labels by number and one-hot, of probabilities and of logits."""
    for logits in (False, True):
        predicted = np.log(PROBABILITIES) + 3 if logits else PROBABILITIES
        for kind, truth in (("Sparse", CLASSES), ("", ONE_HOT)):
            loss = getattr(keras.losses, f"{kind}CategoricalCrossentropy")(from_logits=logits)
            np.testing.assert_allclose(measured(by, loss, truth, predicted), EXPECTED[by], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by", EXPECTED)
def test_two_classes(by):
    """One output stands for two classes."""
    chance, truth = PROBABILITIES[:, :1], (CLASSES < 2).astype("float32")[:, None]
    both, right = np.hstack([1 - chance, chance]), np.hstack([1 - truth, truth])
    expected = {
        "loss": -(right * np.log(both)).sum(1),
        "el2n": np.linalg.norm(both - right, axis=1),
        "forgetting": (both.argmax(1) == right.argmax(1)).astype("float32"),
        "uncertainty": -(both * np.log(both)).sum(1),
    }
    np.testing.assert_allclose(
        measured(by, keras.losses.BinaryCrossentropy(), truth, chance), expected[by], rtol=1e-4, atol=1e-5
    )


def test_sequences():
    """Entries that a mask leaves out do not count."""
    truth, predicted = CLASSES.reshape(3, 4), PROBABILITIES.reshape(3, 4, 4)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], "float32")
    for by in ("loss", "el2n", "uncertainty"):
        found = measured(by, keras.losses.SparseCategoricalCrossentropy(), truth, predicted, mask)
        values = EXPECTED[by].reshape(3, 4)
        np.testing.assert_allclose(found, [values[0].mean(), values[1, :2].mean(), 0], rtol=1e-4, atol=1e-5)


def test_numbers():
    """Of a loss that is no crossentropy, el2n is the length of the error, and there are no classes."""
    truth, predicted = np.float32([[1, 2], [0, 0]]), np.float32([[1, 5], [3, 4]])
    np.testing.assert_allclose(measured("el2n", keras.losses.MeanSquaredError(), truth, predicted), [3, 5])
    for by in ("forgetting", "uncertainty"):
        with pytest.raises(MatexError, match="needs a crossentropy of classes"):
            measured(by, keras.losses.MeanSquaredError(), truth, predicted)
