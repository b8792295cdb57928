"""What of a step every rank computes whole, in words."""

import pytest
import tensorflow as tf

from matex_tf.patches.partition import whole_part
from matex_tf.patches.partition.ranks import Ranks
from matex_tf.patches.partition.step import Partitioned


def _part(function):
    traced = tf.function(function).get_concrete_function(tf.TensorSpec([None, 4]))
    return whole_part.of(Partitioned(traced, [True], Ranks()).plan)


def test_all_is_shared_out():
    part = _part(lambda x: tf.reduce_mean(tf.nn.relu(x)))
    assert not part.ops and part.share == 0


def test_look_ups_in_tables():
    """Python alone says the shape of what is looked up: that of the keys."""
    pairs = tf.lookup.KeyValueTensorInitializer(["1", "2"], tf.constant([0, 1], tf.int64))
    table = tf.lookup.StaticHashTable(pairs, 2)
    weights = tf.Variable(tf.ones([3, 2]))
    part = _part(lambda x: tf.reduce_mean(tf.gather(weights, table.lookup(tf.as_string(x)) % 3)))
    assert not part.ops and part.share == 0


@pytest.mark.parametrize("length", [4, None])
def test_split_strings(length):
    """Each rank splits all strings into words, and works on its rows of what is looked up for them, as many for each
    row as the step says or the longest row has."""
    weights = tf.Variable(tf.ones([7, 2]))

    def step(x):
        words = tf.strings.split(tf.as_string(x[:, 0]), ".")
        numbers = tf.strings.to_hash_bucket_fast(words, 7).to_tensor(shape=[None, length])
        return tf.reduce_sum(tf.tanh(tf.reduce_mean(tf.gather(weights, numbers), axis=1)))

    part = _part(step)
    assert str(part) == "StringSplitV2 of StringSplit" and part.share < 0.5


def test_names_and_share():
    """Half of the values follow from an op that no rule knows; the line names it once."""

    def step(x):
        with tf.name_scope("ranking"):
            over = tf.cumsum(tf.nn.relu(x)) + tf.cumsum(x + 1.0)
        return tf.reduce_sum(over)

    part = _part(step)
    assert [kind for kind, _ in part.ops] == ["Cumsum", "Cumsum"] and str(part) == "Cumsum of ranking"
    assert part.share == pytest.approx(3 / 5)


def test_many_names():
    part = whole_part.WholePart([("TopKV2", f"layer_{i}/TopKV2") for i in range(5)] + [("Where", "Where")], 0.5)
    assert str(part) == "TopKV2 of layer_0, TopKV2 of layer_1, TopKV2 of layer_2 and 3 more"
