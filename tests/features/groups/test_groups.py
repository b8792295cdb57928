"""Groups of ranks that train apart: what they hold and what the center is, against numpy."""

import numpy as np
import pytest
from compare import alike, same

from matex_tf.cli.main import main
from matex_tf.errors import SettingError
from matex_tf.settings import Settings
from tests.features.groups.cases import groups
from tests.features.groups.test_local import simulate

CENTER = "meet at the center"


def elastic(every, alpha, mu, rows=56, batch=8, epochs=2, center=None):
    """One group and a center: the weights after each step, and the center after each epoch (EASGD and EAMSGD)."""
    random = np.random.RandomState(0)
    x, y = random.normal(size=(rows, 3)), random.normal(size=(rows, 1))
    w, c, m, seen, shown, last, steps = np.full(3, 0.5), np.full(3, 0.5), np.zeros(3), [], [], 0, 0
    for epoch in range(epochs):
        for low in range(0, rows, batch):
            here = slice(low, low + batch)
            gradient = 2 * x[here].T @ (x[here] @ w - y[here, 0]) / batch
            m = mu * m + gradient
            w = w - 0.05 * (gradient + mu * m)
            steps += 1
            if steps - last >= every:
                last, d = steps, alpha * (w - c)
                w, c = w - d, c + d
            seen.append(w)
        if steps > last:  # before the script sees the center
            last, d = steps, alpha * (w - c)
            w, c = w - d, c + d
        shown.append(c)
        if center is not None and epoch == 0:
            w = c = np.full(3, center)
    return np.array(seen), shown


@pytest.mark.variants(1)
@pytest.mark.parametrize(("every", "alpha", "mu", "center"), [(3, 0.4, 0.0, None), (2, 0.9, 0.5, 0.1)])
def test_elastic_equals_numpy(ranks, every, alpha, mu, center):
    """One group of two ranks: what it does with the center is what the paper's formulas say, to the last step."""
    given = {"elastic_every": every, "elastic_alpha": alpha, "elastic_momentum": mu, "elastic_overlap": False}
    found = ranks(groups.linear, (2,), strategy="elastic", groups="1", center=center, **given)
    seen, shown = elastic(every, alpha, mu, center=center)
    for value in found[2]:
        np.testing.assert_allclose(value["batches"], seen, rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(value["shown"], shown, rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(value["end"], shown[-1], rtol=2e-4, atol=1e-6)


def test_local_by_groups(ranks):
    """Two groups of two ranks are as two ranks: inside a group all is as in sync."""
    given = {"strategy": "local", "groups": "2", "local_every": 3, "outer_learning_rate": 0.7, "outer_momentum": 0.9}
    seen, end = simulate(2, 3, 0.7, 0.9)
    found = ranks(groups.linear, (4,), meets="take an outer step", **given)[4]
    for rank, value in enumerate(found):
        np.testing.assert_allclose(value["batches"], seen[rank // 2], rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(value["end"], end, rtol=2e-4, atol=1e-6)


def test_server_without_staleness_is_sync(ranks):
    """With --staleness 0 the answer is that of one rank."""
    same(ranks(groups.synchronous, strategy="server", staleness=0))


@pytest.mark.variants(1)
@pytest.mark.parametrize("strategy", ["local", "server"])
def test_one_group_is_sync(ranks, strategy):
    """With --groups 1 there is nobody to average with: where an outer step or the center adds nothing, the answer is
    that of one rank."""
    plain = {"local_every": 3, "outer_learning_rate": 1.0, "outer_momentum": 0.0} if strategy == "local" else {}
    same(ranks(groups.synchronous, strategy=strategy, groups="1", **plain))


FORMS = {
    "elastic": {"strategy": "elastic", "elastic_every": 2},
    "server": {"strategy": "server", "staleness": 1},
    "groups": {"strategy": "elastic", "elastic_every": 2, "groups": "2"},
    "codec": {"strategy": "elastic", "elastic_every": 2, "codec": "int8"},
    "server codec": {"strategy": "server", "codec": "int8", "error_feedback": True},
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("form", FORMS)
def test_each_row_once(ranks, form):
    """Parts of batches are dealt out, and all groups together take each row once an epoch."""
    found = ranks(groups.rows_once, (3 if form == "groups" else 2,), meets=CENTER, **FORMS[form])
    for values in found.values():
        for value in values:
            np.testing.assert_allclose(value["mean"], value["wanted"], rtol=1e-5)


@pytest.mark.variants(1)
@pytest.mark.parametrize("form", FORMS)
def test_goes_on(ranks, form):
    """Fits, weights that are set, single batches: all ranks end with the center, to the bit, and learn."""
    found = ranks(groups.goes_on, (3,), meets=CENTER, **FORMS[form])
    alike(found, rtol=0, atol=0)
    for losses in (found[3][0]["losses"], found[3][0]["again"]):
        assert losses[-1] < 0.8 * losses[0], losses


def test_own_rows(ranks):
    """A group of one rank trains on rows that only it has."""
    found = ranks(groups.own_rows, (2,), strategy="elastic", elastic_every=2, meets=CENTER)
    alike(found, rtol=1e-6)
    assert found[2][0]["losses"][-1] < found[2][0]["losses"][0]


def test_refused_before_ranks_start(capsys, monkeypatch, tmp_path):
    """Groups that so many ranks cannot be in, and servers that leave nobody to train."""
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    for words, why in (
        (["--groups", "5", "-n", "4"], "5 groups, and there are 4 ranks"),
        (["--groups", "3", "--servers", "2", "-n", "4"], "3 groups, and there are 2 ranks"),
        (["--groups", "0-1/1-3", "-n", "4"], "1 is in it twice"),
        (["--servers", "2", "-n", "2"], "leaves none of 2 ranks"),
    ):
        assert main(["run", "--strategy", "elastic", *words, "train.py"]) == 2
        assert why in capsys.readouterr().err


def test_refused():
    """Settings that mean nothing."""
    for given, word in (
        ({"strategy": "sync", "groups": "2"}, "has no groups"),
        ({"strategy": "local", "servers": "1"}, "has none"),
        ({"strategy": "elastic", "groups": "some"}, "a number, host, or ranks"),
        ({"strategy": "elastic", "batch": "per-rank"}, "--batch global"),
        ({"strategy": "elastic", "faults": "restart"}, "--faults shrink"),
        ({"strategy": "elastic", "elastic_alpha": "1"}, "below 1"),
        ({"strategy": "local", "groups": "1", "join": "29465.json"}, "take that of the job"),
        ({"strategy": "elastic", "join": "29465.json"}, "--groups 1"),
        ({"strategy": "elastic", "elastic_momentum": "1"}, "below 1"),
        ({"strategy": "elastic", "center_network": "10.0.0"}, "must look like"),
        ({"strategy": "elastic", "center_network": "8.8.8.0/24"}, "not a private network"),
    ):
        with pytest.raises(SettingError, match=word):
            Settings.read(given, {})


EVERY = {
    "sync": {"strategy": "sync"},
    "pipe": {"strategy": "pipe"},
    "gossip": {"strategy": "gossip"},
    "local": {"strategy": "local", "local_every": 3},
    "local groups": {"strategy": "local", "local_every": 3, "groups": "2"},
    "elastic": {"strategy": "elastic", "elastic_every": 2},
    "elastic groups": {"strategy": "elastic", "elastic_every": 2, "groups": "2"},
    "server": {"strategy": "server", "staleness": 1},
    "server groups": {"strategy": "server", "staleness": 1, "groups": "2"},
}


@pytest.mark.variants(1)
@pytest.mark.parametrize("form", EVERY)
def test_callbacks(ranks, form):
    """Every strategy with the default progress bar, with each callback of Keras, and with one that reads batches."""
    found = ranks(groups.with_callbacks, (3,), meets="merge metrics", **EVERY[form])[3]
    for value in found:
        np.testing.assert_allclose([*value["losses"].values()], [*found[0]["losses"].values()], rtol=1e-6)
        assert len(value["seen"]) == 4 * 9
        assert all(np.isfinite(logs["loss"]) for logs in value["seen"])
        if form != "gossip" and form != "local":  # whose metrics are averaged rank by rank
            np.testing.assert_allclose(value["seen"][-1]["loss"], value["losses"]["seen"][-1], rtol=1e-5)


@pytest.mark.variants(4)
@pytest.mark.parametrize("form", EVERY)
def test_means_of_rows(ranks, form):
    """What a step computes of its rows is the mean over the rows of all groups, however many there are."""
    for value in ranks(groups.means_of_rows, (3,), meets="merge metrics", **EVERY[form])[3]:
        np.testing.assert_allclose([*value["batches"], *value["epochs"]], 5.0, rtol=1e-5)


@pytest.mark.parametrize("form", ["local groups", "server", "elastic"])
def test_fewer_rows_than_groups(ranks, form):
    """A group that has no row of a batch keeps in step with those that have some."""
    given = {**EVERY[form], **({"groups": "3"} if form == "local groups" else {})}
    for value in ranks(groups.few_rows, (3,), meets="merge metrics", **given)[3]:
        assert value["steps"] == 48
        assert value["losses"][-1] < value["losses"][0]
        assert np.isfinite(value["single"]).all()
