"""Every kind of data: the same losses, weights, evaluation and predictions on 1, 2, 3 and 4 ranks."""

import pytest
from compare import alike, same

from tests.support.cases import data

KINDS = [
    data.numpy_arrays,
    data.digits,
    data.dicts,
    data.frames,
    data.dataset,
    data.dataset_unknown,
    data.pydataset,
    data.generator,
    data.lists,
    data.tuples,
    data.tensors,
    data.dataset_with_weights,
    data.dataset_repeat,
    data.dataset_drop_remainder,
    data.sequence,
    data.small_batches,
    data.targets_of_two_axes,
    data.sparse,
    data.strings,
]


#: Tried on 1, 3 and 4 ranks always; the others as `--sizes` says.
ON_ALL = (data.numpy_arrays,)


@pytest.mark.variants(3)
@pytest.mark.parametrize("kind", KINDS)
def test_data(ranks, kind):
    """Shared out by any number of ranks, the data give the answer of one rank, in the order of the rows."""
    reference = same(ranks(kind, (1, 3, 4) if kind in ON_ALL else None))
    losses = reference["history"]["loss"]
    assert len(losses) == 2 and losses[-1] < losses[0]


@pytest.mark.variants(1)
@pytest.mark.parametrize(("kind", "do"), [("tf", "fit"), ("scipy", "fit"), ("scipy", "evaluate"), ("tf", "predict")])
def test_sparse_batches_build_a_model(ranks, kind, do):
    """Their columns are known where the graph is traced, and Adagrad adds up what it squares as on one rank."""
    meets = "gather predictions" if do == "predict" else "exchange gradients" if do == "fit" else ""
    same(ranks(data.sparse_unbuilt, meets=meets, kind=kind, do=do))


def test_nested_otherwise(ranks):
    """The graph of a step is made for one structure of a batch, and a batch of another one gets its own."""
    same(ranks(data.nested_otherwise))


def test_sparse_batches_eagerly(ranks):
    """Also where no graph shows that a sparse batch looks each column up once."""
    same(ranks(data.sparse_eagerly))


@pytest.mark.parametrize("sharded", [False, True], ids=["the same rows", "shards"])
def test_orders_without_a_seed(ranks, sharded):
    """Each epoch has another one, the same on all ranks; with a seed of the script's they are all one, as in Keras."""
    orders, *others = ranks(data.orders_without_a_seed, (2,), sharded=sharded)[2]
    assert len(set(orders)) == 6 and all(other == orders for other in others)
    with_a_seed = ranks(data.orders_without_a_seed, (2,), sharded=sharded, seed=3)[2][0]
    assert len(set(with_a_seed)) == 1


def test_draws_without_a_seed(ranks):
    """A map draws other numbers in each epoch, the same on all ranks; those of the script's seed come again."""
    found = ranks(data.draws_without_a_seed, (2, 3))
    losses, *others = [*found[2], *found[3]]
    assert len(set(losses)) == 6 and all(other == pytest.approx(losses, rel=1e-5) for other in others)
    assert len(set(ranks(data.draws_without_a_seed, (2,), seed=3)[2][0])) == 1


@pytest.mark.variants(1)
@pytest.mark.parametrize("rows", [1, 2])
def test_fewer_rows_than_ranks(ranks, rows):
    """Ranks without a row take part as ghosts."""
    same(ranks(data.few_rows, (1, 3), rows=rows))


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("parts", "options"),
    [
        ((34, 33, 34), {}),
        ((40, 21, 40), {"batch": 7}),
        ((90, 2, 9), {"explicit_batch": False}),
        ((0, 61, 40), {}),
        ((26, 25, 25, 25), {}),
        ((3, 1, 2, 95), {"batch": 9}),
    ],
)
def test_shards(ranks, parts, options):
    """Ranks that hold rows of their own use each once an epoch, in batches of the script's size.

    One rank that visits the rows in `Turns.order` has the same losses; a rank predicts for the rows that it holds.
    """
    same(ranks(data.shards, (1, len(parts)), parts=parts, **options))


@pytest.mark.variants(1)
@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_shuffled_shards(ranks, shuffle):
    """The ranks end alike, and the losses fall."""
    values = ranks(data.shards, (3,), parts=(40, 21, 40), shuffle=shuffle)
    alike(values)
    losses = values[3][0]["history"]["loss"]
    assert losses[-1] < losses[0]


def test_rows_of_the_ranks_own_on_batch(ranks):
    """`train_on_batch` with each rank's own rows is one step on all of them."""
    same(ranks(data.shards_in_turn))


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["map", "shuffle"])
def test_at_the_source(ranks, kind):
    """`--data source` does 1/p of the work, and where p divides the batch the answer is that of one rank."""
    results = ranks(data.at_the_source, (1, 3) if kind == "map" else (1, 2, 4), kind=kind)
    for size, values in results.items():
        assert [value.pop("worked") for value in values] == [2 * 96 // size] * size
    same(results)


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["uneven", "files"])
def test_other_batches_at_the_source(ranks, kind):
    """Batches hold other rows, but every row is worked on once, and all ranks end alike."""
    results = ranks(data.at_the_source, (3,), kind=kind)
    assert sum(value.pop("worked") for value in results[3]) == 2 * 96
    alike(results)


@pytest.mark.parametrize(("kind", "word"), [("predict", "predict"), ("batches", "batch()")])
def test_not_at_the_source(ranks, kind, word):
    """What cannot be shared out at the source is refused."""
    for message in ranks.refused(data.not_at_the_source, (3,), kind=kind)[3]:
        assert word in message and "--data" in message


def test_generators_without_a_seed(ranks):
    """Those of a script draw the same on every rank, and something else each time; tempfile's names are its own."""
    results = ranks(data.generators_without_a_seed, (3,), apart="each rank draws its own numbers")[3]
    drawn = [numbers for numbers, _ in results]
    assert drawn[0] == drawn[1] == drawn[2] and len(set(drawn[0])) == len(drawn[0])
    for apart in zip(*(apart for _, apart in results), strict=True):
        assert len(set(apart)) == 3
