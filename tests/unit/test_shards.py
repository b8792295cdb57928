"""Variables that lie in parts: what is read of them, what touches them, and what is refused beside `--shard`."""

import copy
import dataclasses

import numpy as np
import pytest
from there import case

from matex_tf.errors import MatexError, SettingError
from matex_tf.settings.run_settings import Settings

WHOLE = np.arange(200, dtype="float32").reshape(20, 10)


@pytest.fixture
def split():
    """A variable of Keras in parts, on one rank, and its part."""
    import keras

    from matex_tf.patches.shards import variable as in_parts

    variable = keras.Variable(WHOLE, trainable=False)
    part = in_parts.Part(variable._value, "a slot")
    part.split()
    return variable, part


def _held(part):
    import tensorflow as tf

    return tf.raw_ops.ReadVariableOp(resource=part.variable.__dict__["_handle"], dtype=part.dtype).numpy()


READS = {
    "numpy": lambda v: v.numpy(),
    "asarray": np.asarray,
    "of TensorFlow": lambda v: v._value.numpy(),
    "value": lambda v: v.value.numpy(),
    "sum": lambda v: (v + 0.0).numpy(),
    "a copy": lambda v: copy.deepcopy(v._value).numpy(),
    "rows": lambda v: np.stack([v._value.sparse_read([row])[0] for row in range(20)]),
}


@pytest.mark.parametrize("how", READS)
def test_python_reads_the_whole(split, how):
    """However it is read; its own memory holds no element until something else than a reader touches it."""
    variable, part = split
    assert _held(part).size == 0 and part.own.shape == (200,)
    np.testing.assert_array_equal(READS[how](variable), WHOLE)
    assert part.is_split == (how != "rows")


def test_assigned_in_parts(split):
    """A value that is assigned goes to the parts; one that is added makes it whole."""
    variable, part = split
    variable.assign(2 * WHOLE)
    assert part.is_split
    np.testing.assert_array_equal(part.own, 2 * WHOLE.reshape(-1))
    with pytest.raises(ValueError, match="a slot"):
        part.variable.assign(WHOLE[1:])
    part.variable.assign_add(WHOLE)
    assert not part.is_split
    np.testing.assert_array_equal(_held(part), 3 * WHOLE)
    part.split()
    np.testing.assert_array_equal(variable.numpy(), 3 * WHOLE)


def test_another_variable_is_asked_for(split, monkeypatch):
    """All ranks meet about what each would gather, told apart by name and shape; who has none says so, and listens."""
    from matex_tf.core import world
    from matex_tf.errors import RanksDisagree
    from matex_tf.patches.shards import serving

    said = []

    def meet(what, detail=()):
        said.append(what)
        raise RanksDisagree(what)

    monkeypatch.setattr(world.of_job(), "barrier", meet)
    monkeypatch.setattr(world.of_job(), "allgather_rows", lambda rows, what: meet(what))
    questions = iter([serving.Asked(10**6, False), None])
    assert serving.answered(serving.Asked(split[1]._number, False), lambda: next(questions)) is None
    assert said[0].endswith("a slot float32 (20, 10)") and "1000000" in said[1] and len(said) == 2, said


def test_a_checkpoint_of_tensorflow(split, tmp_path):
    """Holds the whole value, and gives it back."""
    import tensorflow as tf

    variable, part = split
    path = tf.train.Checkpoint(slot=part.variable).save(str(tmp_path / "a"))
    part.split()
    variable.assign(0 * WHOLE)
    tf.train.Checkpoint(slot=part.variable).restore(path)
    np.testing.assert_array_equal(variable.numpy(), WHOLE)


@pytest.mark.parametrize("what", ["read", "assign", "add", "scale"])
def test_a_function_that_knew_it_whole_fails(what):
    """It was traced before, and finds no value that it could go on with."""
    import keras
    import tensorflow as tf

    from matex_tf.patches.shards import variable as in_parts

    variable, weight = keras.Variable(WHOLE, trainable=False), tf.Variable(WHOLE)
    inner = variable._value
    function = tf.function(
        {
            "read": lambda: weight.assign(weight + inner),
            "assign": lambda: inner.assign(WHOLE),
            "add": lambda: inner.assign_add(WHOLE),
            "scale": lambda: weight.assign(0.5 * inner),
        }[what]
    ).get_concrete_function()
    in_parts.Part(inner, "a slot").split()
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.InternalError)):
        function()
    np.testing.assert_array_equal(weight, WHOLE)


def test_a_function_that_is_traced_then_is_refused(split):
    """By a message that names the option."""
    import tensorflow as tf

    with pytest.raises(MatexError, match="--shard none"):
        tf.function(lambda: split[0]._value + 1.0, autograph=False)()


def test_which_variables():
    """Large ones of an optimizer that have the shape of a weight, if a step only reads and assigns them."""
    import keras

    from matex_tf.patches.shards.slots import Slots

    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    other = optimizer.add_variable((200,), "zeros", name="other")
    handles = {one.path: one._value.handle for one in optimizer.variables}
    slots = Slots([optimizer], model.trainable_variables)
    chosen = [path for path, handle in handles.items() if slots.part_of(handle, fits=True, in_loop=False) is not None]
    assert len(chosen) == 2 and all("kernel" in path for path in chosen), chosen
    assert slots.whole == [other.path] and other.path in slots.line()
    assert slots.part_of(handles[chosen[0]], fits=False, in_loop=False) is None and chosen[0] in slots.line()


def test_which_weights():
    """Those of two axes and more, if no loop of the step uses them: such a weight would be gathered in each round."""
    import keras

    from matex_tf.patches.shards.slots import Slots

    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(128, trainable=False), keras.layers.Dense(8)])
    slots = Slots([], model.trainable_variables, model.weights)
    handles = {one.path: one._value.handle for one in model.weights}
    chosen = [path for path, one in handles.items() if slots.part_of(one, fits=True, in_loop=False) is not None]
    assert len(chosen) == 2 and all("kernel" in path for path in chosen) and not slots.whole, chosen
    assert slots.part_of(handles[chosen[0]], fits=True, in_loop=True) is None and slots.whole == chosen[:1]


def test_a_gradient_of_a_weight(split):
    """What a tape watches is whole: TensorFlow records what is read of a variable itself."""
    import tensorflow as tf

    trained = tf.Variable(WHOLE)
    from matex_tf.patches.shards import variable as in_parts

    part = in_parts.Part(trained, "a weight")
    part.split()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(trained**2)
    assert not part.is_split
    np.testing.assert_array_equal(tape.gradient(loss, trained), 2 * WHOLE)


@pytest.mark.parametrize(
    "name,value",
    [
        ("partitioner", False),
        case("gossip", "strategy", "gossip"),
        ("reproducible", 4),
        ("batch_norm", "rank"),
        ("codec", "int8"),
    ],
)
def test_what_does_not_go_with_it(name, value):
    """Both options are named, before anything starts."""
    chosen = dataclasses.replace(Settings(), shard="state", **{name: value})
    with pytest.raises(SettingError, match=f"--shard state and --{name.replace('_', '-')} "):
        chosen.refuse_conflicts()
    dataclasses.replace(Settings(), shard="state").refuse_conflicts()


class Nodes:
    """What a layout asks of a world: ranks on nodes."""

    generation = 0

    def __init__(self, rank, *nodes):
        self.rank, self.nodes, self.size = rank, nodes, sum(map(len, nodes))


def test_copies_are_on_other_nodes():
    """Each rank has the parts of those before it in a ring, whose neighbors are on different nodes."""
    from matex_tf.patches.shards.layout import Layout

    layouts = [Layout(Nodes(rank, [0, 1], [2, 3], [4]), 1) for rank in range(5)]
    assert layouts[0].ring == [0, 2, 4, 1, 3]
    assert [layout.held for layout in layouts] == [[0, 3], [1, 4], [2, 0], [3, 1], [4, 2]]
    assert all(layouts[to].held[1] == rank for rank, layout in enumerate(layouts) for to in layout.to)
    for dead in ([0, 1], [2, 3], [4]):
        left = [rank for rank in range(5) if rank not in dead]
        layout = Layout(Nodes(left[0], [0, 1], [2, 3], [4]), 1)
        layout.leave(left)
        given = layout.givers()
        assert len(given) == len(left) and sorted(part for parts in given for part in parts) == list(range(5))
        assert all(part in layouts[rank].held for rank, parts in zip(left, given, strict=True) for part in parts)


def test_a_part_and_its_copies_are_lost():
    """An error that says so, if ranks 1 and 2 die at once with one copy of each; two copies are enough."""
    from matex_tf.patches.shards.layout import Layout

    for copies in (1, 2):
        layout = Layout(Nodes(0, [0, 1, 2, 3]), copies)
        layout.leave([0, 3])
        if copies == 2:
            assert layout.givers() == [[0], [1, 2, 3]]
            continue
        with pytest.raises(MatexError, match="rank 1 of 4 died .* and so did rank 2, with all"):
            layout.givers()
