"""Training steps as people write them, rebuilt by the partitioner for three ranks that are threads, beside one rank."""

import pytest

#: The types of ops that every rank computes whole, by step; other steps have none.
WHOLE = {
    "moco": ("ConcatV2",),
    "nnclr": ("ConcatV2",),
    "alignments": ("ScatterNd", "TensorScatterAdd", "TensorScatterUpdate"),
    "masked_tokens": ("GatherV2", "Where"),
    "maml": ("StridedSlice",),
    "experts": ("ScatterNd",),
    "experts_by_place": ("Cumsum",),
    "mapped": ("GatherV2", "SparseSoftmaxCrossEntropyWithLogits"),
    "conditional": ("Mul", "OptionalFromValue", "StridedSlice"),
    "between_rows": ("Cumsum", "GatherV2", "StridedSlice", "TopKV2", "UniqueWithCounts", "UnsortedSegmentSum", "Where"),
    "segments": ("TensorScatterAdd", "UnsortedSegmentMax"),
    "memory_bank": ("ResourceScatterAdd", "ResourceScatterNdUpdate"),
    "said": ("CheckNumerics",),
    "over_rows": ("AddN", "StridedSlice"),
    "whitening": ("MatrixTriangularSolve",),
    "histograms": ("DenseBincount", "HistogramFixedWidth"),
    "mixup": ("ReverseV2", "Roll"),
    "ragged": ("Cumsum", "GatherV2", "SparseSoftmaxCrossEntropyWithLogits", "Where"),
    "sparse": ("GatherNd", "SparseTensorDenseMatMul", "Where"),
}
#: The name that an op of TensorFlow 2.13 has now.
SINCE = {"Bincount": "DenseBincount"}
NAMES = (
    "vq_vae",
    "moco",
    "nnclr",
    "centralized",
    "lookahead",
    "sam",
    "nt_xent",
    "clip",
    "barlow_twins",
    "vicreg",
    "dice",
    "alignments",
    "masked_tokens",
    "metrics_of_metrics",
    "wgan_gp",
    "dynamic_scale",
    "maml",
    "experts",
    "experts_by_place",
    "mapped",
    "conditional",
    "between_rows",
    "segments",
    "memory_bank",
    "embedding",
    "said",
    "triplets",
    "until",
    "over_rows",
    "looked_up_by_row",
    "whitening",
    "histograms",
    "mixup",
    "ragged",
    "sparse",
    "turning",
)


@pytest.fixture(scope="module")
def support():
    """Imported when a test is run: nothing else imports TensorFlow where tests are collected."""
    from tests.support import partition_cases, partition_steps

    return partition_cases, partition_steps


@pytest.mark.parametrize("name", NAMES)
def test_step(support, name):
    """Logs and variables are those of one rank, and no op is computed whole that need not be."""
    cases, steps = support
    result = cases.compare(steps.STEPS[name])
    assert max(result.logs, result.variables) < (1e-6 if name in steps.IN_32_BITS else 1e-9), result
    assert result.apart == 0, result
    assert {SINCE.get(kind, kind) for kind in result.whole} == set(WHOLE.get(name, ())), result


def test_fused_batch_normalization(support):
    """A layer takes an exchange forward and one backward; gradients and the loss share one more. A batch of one row has
    no variance, and rounding decides what becomes of it."""
    from tests.support import partition_normalization

    result = support[0].compare(partition_normalization.two_layers, sizes=(23, 14, 7, 5))
    assert max(result.logs, result.variables) < 2e-6, result
    assert (result.apart, result.whole, result.exchanges) == (0, {}, 5), result


def test_names(support):
    """Every step of the support module is tried."""
    assert set(NAMES) == set(support[1].STEPS)
