"""What cannot be trained on many ranks: every rank stops with a message that names what differs, and where."""

import pytest
import there
from compare import alike

from tests.support.cases import bad
from tests.support.installed import KERAS

# case, arguments, the exception, words that each message must have
REFUSED = [
    (bad.layer_count, {}, "RanksDisagree", ["rank 1", "one_more"]),
    (bad.layer_shape, {}, "RanksDisagree", ["rank 1", "first", "9", "8"]),
    (bad.columns, {"kind": "arrays"}, "RanksDisagree", ["rank 1", "7", "6", "columns"]),
    (bad.columns, {"kind": "dataset"}, "RanksDisagree", ["rank 1", "7", "6", "columns"]),
    (bad.dtype, {"kind": "arrays"}, "RanksDisagree", ["rank 1", "int64", "float32"]),
    (bad.dtype, {"kind": "dataset"}, "RanksDisagree", ["rank 1", "int64", "float32"]),
    (bad.bypass, {}, "RanksDisagree", ["kernel", "optimizer"]),
    (bad.own_function, {"which": "train"}, "MatexError", ["Own", "train_function of its own", "make_train_function"]),
    (bad.own_function, {"which": "test"}, "MatexError", ["Own", "test_function of its own", "make_test_function"]),
    (bad.states, {"how": "fit"}, "MatexError", ["layer keeps", "stateful=True"]),
    (bad.states, {"how": "predict"}, "MatexError", ["layer keeps", "stateful=True"]),
    (bad.complex_gradient, {}, "MatexError", ["complex64", "wave"]),
    (bad.shorter_generator, {}, "RanksDisagree", ["rank 1", "different ways"]),
    (bad.smaller_batch, {}, "RanksDisagree", ["rank 1", "25", "20"]),
    (bad.leaves_loop, {}, "RanksDisagree", ["rank 1", "different ways", "evaluate"]),
    (bad.other_epochs, {}, "RanksDisagree", ["rank 1", "what fit is asked for", "epochs=1"]),
    (bad.other_optimizer, {}, "RanksDisagree", ["rank 1"]),
    (bad.loop, {"how": "layer"}, "RanksDisagree", ["rank 1", "weights of a loop"]),
    (bad.loop, {"how": "shorter"}, "RanksDisagree", ["rank 1", "different ways", "batch 4 of the loop at bad.py"]),
    (bad.loop, {"how": "smaller"}, "RanksDisagree", ["rank 1", "a batch of 20 rows"]),
    (bad.loop, {"how": "leaves"}, "RanksDisagree", ["rank 1", "different ways"]),
    (bad.loop, {"how": "metric"}, "RanksDisagree", ["rank 1", "different ways", "merge metrics"]),
    (bad.loop, {"how": "optimizer"}, "RanksDisagree", ["rank 1", "weights of a loop"]),
]
SESSIONS = [
    (bad.session, {"how": "variable"}, "RanksDisagree", ["rank 1", "w:0"]),
    (bad.session, {"how": "leaves"}, "RanksDisagree", ["rank 1", "different ways", "write"]),
]


@pytest.mark.parametrize(
    ("case", "arguments", "error", "words"),
    [*REFUSED, *(there.case("sessions", *one) for one in SESSIONS)],
    ids=["-".join([case.__name__, *arguments.values()]) for case, arguments, _, _ in (*REFUSED, *SESSIONS)],
)
def test_refused(ranks, case, arguments, error, words):
    """All ranks raise, none hangs, and the message says what differs."""
    if case is bad.complex_gradient and KERAS < (3, 12):
        pytest.skip("this Keras' optimizers do not take a tf.Variable, on one rank either")
    messages = ranks.refused(case, (3,), error=error, **arguments)[3]
    for message in messages:
        missing = [word for word in words if word not in message]
        assert not missing, f"{missing} not in: {message}"


def test_another_learning_rate(ranks):
    """A learning rate that differs is rank 0's on all ranks: weights never part ways."""
    alike(ranks(bad.other_rate, (3,)))


def test_the_scripts_own_exception(ranks):
    """An exception of the script's own comes out as it is, on every rank."""
    for outcome in ranks.outcomes(bad.raises_in_callback, (3,))[3]:
        assert outcome.kinds[0] == "KeyError" and "the script's own" in outcome.error
