"""Metrics are merged from their state: the history, validation and `evaluate` of one rank, on every rank."""

import pytest
from compare import same

from tests.support.cases import metrics
from tests.support.installed import KERAS

NAMES = {
    "binary": "accuracy auc auc_pr precision recall f1 fbeta binary_iou true_positives false_negatives "
    "precision_at_recall sensitivity crossentropy hinge",
    "regression": "mse rmse mape r2 r2_weighted logcosh wrapped",
    "classes": "accuracy top2 f1 f1_by_class one_hot_iou precision recall auc divergence cosine crossentropy",
    "indices": "accuracy top2 mean_iou iou crossentropy",
}


@pytest.fixture(scope="module")
def trained(any_ranks):
    """The results of each kind, trained once for all of its metrics."""
    results = {}

    def of(kind):
        if kind not in results:
            results[kind] = any_ranks(metrics.every, kind=kind)
        return results[kind]

    return of


@pytest.mark.variants(sum(1 + len(NAMES[kind].split()) for kind in ("binary",)))
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in NAMES for name in ["loss", *NAMES[kind].split()]])
def test_metric(trained, kind, name):
    """One metric, of training, of validation and of `evaluate`; some also with sample weights."""
    if name in ("precision_at_recall", "sensitivity") and KERAS < (3, 4):
        pytest.skip("Keras 3.3 cannot compute this metric in a graph, on one rank either")
    entries = [name, f"weighted_{name}"] if name in NAMES[kind].split()[:4] else [name]

    def pick(value):
        history, evaluated = value["history"], value["evaluate"]
        return [[history[entry], history[f"val_{entry}"], evaluated[entry]] for entry in entries]

    same({size: [pick(value) for value in values] for size, values in trained(kind).items()})


def test_correlations(ranks):
    """Metrics of Keras whose state is not made of sums."""
    if KERAS < (3, 7):
        pytest.skip("this Keras does not have them")
    same(ranks(metrics.correlation), rtol=1e-4)


@pytest.mark.smoke
def test_metrics_inside(ranks):
    """Metrics that live in a layer or in another metric."""
    same(ranks(metrics.nested))
