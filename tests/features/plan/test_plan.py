"""`matex-tf plan`: what is measured, what is made of it, and what it refuses."""

import json
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from jobs import LAUNCHER, Job

from matex_tf.cli.main import main
from matex_tf.errors import DataError, MatexError
from matex_tf.exchange.bucket import ALIGNMENT
from matex_tf.exchange.network import lane
from matex_tf.features.plan import command as planning
from matex_tf.features.plan import predict, probe
from matex_tf.planning import cost_model, step_cost
from matex_tf.planning.cost_model import CodecCost, Machine, hierarchical
from matex_tf.planning.timeline import Step
from matex_tf.settings import Settings
from tests.features.plan.cases import measured

MACHINE = Machine(
    alpha=50e-6,
    beta=8e-9,
    gamma=0.2e-9,
    codecs={"bf16": CodecCost(0.5, 0.2e-9, 0.2e-9, 0.3e-9), "int8": CodecCost(0.252, 0.5e-9, 0.3e-9, 0.4e-9)},
)
MLP = predict.Job("mlp.py", 4, 0.3, 0.02, 1e8, 4)
SCRIPT = """
import keras, numpy as np
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(3)])
model.compile("sgd", "mse")
model.fit(np.ones((400, 8), "float32"), np.ones((400, 3), "float32"), batch_size=10, epochs=100, verbose=0)
print("the script went on")
"""


def test_sizes():
    """Powers of two, what is there, and what was asked for; only what is known where links are not."""
    assert predict.sizes(6, 16)[:4] == [2, 4, 6, 8]
    assert predict.sizes(6, 10_000)[-2:] == [4096, 10_000]
    assert predict.sizes(3, limit=3) == [2, 3]
    assert predict.sizes(2)[-1] == 4096


def test_predictions_are_the_formulas():
    """Each strategy by its own, with the exchange of the gradients bucket by bucket."""
    row = predict.predict(MLP, MACHINE, 8)
    exchange = cost_model.hierarchical(8, 2.5e7, MACHINE) * 4
    assert row.seconds["sync"] == step_cost.overlapped(0.3, 0.02, exchange, 4)
    assert row.seconds["pipe"] == pytest.approx(max(0.34, exchange.seconds))  # updates twice, once to predict
    coded = cost_model.hierarchical(8, 2.5e7, MACHINE, MACHINE.codecs["int8"]) * 4
    assert row.seconds["pipe int8"] == pytest.approx(max(0.34, coded.seconds))
    published = predict.predict(MLP, MACHINE, 8, settings=Settings.read({"pipe_predict": "off"}, {}))
    assert published.seconds["pipe int8"] == pytest.approx(max(0.32, coded.seconds))
    assert row.seconds["one-server"] == step_cost.parameter_server(8, 1e8, 0.3, 0.02, MACHINE)
    assert row.efficiency["sync"] == pytest.approx(0.32 / row.seconds["sync"])
    gossip = [predict.predict(MLP, MACHINE, ranks).seconds["gossip"] for ranks in (2, 64, 4096)]
    assert gossip[0] == gossip[1] == gossip[2]


def test_options_of_strategies():
    """Each is predicted with the options that are given."""

    def predicted(**options):
        settings = Settings().changed(**options)
        row = predict.predict(MLP, MACHINE, 8, settings=settings)
        return row.seconds, predict.advice(predict.Row(8, {"sync": 2.0, "pipe": 1.0}, {}, "pipe"), settings)

    plain, sent = predicted()[0], cost_model.message(1e8, MACHINE).seconds
    assert predicted(pipe_width=1)[0]["pipe"] == plain["sync"] != plain["pipe"]
    assert "gradients are applied 3 steps late" in predicted(pipe_width=4)[1]
    assert predicted(gossip_sync=True)[0]["gossip"] == pytest.approx(0.32 + 1e8 * MACHINE.gamma + sent)
    assert predicted(gossip_every=4, gossip_sync=True)[0]["gossip"] == pytest.approx(
        0.32 + (1e8 * MACHINE.gamma + sent) / 4
    )
    assert predicted(gossip_every=4)[0]["gossip"] < plain["gossip"]


def test_memory():
    """Of Adam 16 bytes a weight; sums that are whole lie once on a node."""
    job = replace(MLP, nbytes=4.0)
    apart, node = predict.memory(job, 4, 1), predict.memory(job, 4, 2)
    assert (apart["none"], apart["state"], apart["gradients"]) == (16, 8 + 8 / 4, 4 + 12 / 4)
    assert apart.get("weights", 4) == 16 / 4
    assert (node["none"], node["state"], node["gradients"]) == (14, 6 + 8 / 4, 4 + 12 / 4)
    assert predict.memory(replace(job, slots=0), 4, 1)["state"] == 8


def test_steps_in_parts():
    """Of a rank alone all are alike; of others each gather of the weights takes half of an allreduce, and the update
    is shared out, but not what passes between steps."""
    job = replace(MLP, between=0.004)
    assert set(predict.predict(job, MACHINE, 1).shards.values()) == {MLP.compute + MLP.update + 0.004}
    found, half = predict.predict(job, MACHINE, 4).shards, cost_model.hierarchical(4, 2.5e7, MACHINE).seconds * 2
    assert found["none"] == predict.predict(job, MACHINE, 4).seconds["sync"]
    scattered = step_cost.overlapped(MLP.compute, MLP.update / 4 + 0.004, cost_model.Cost(half), 4)
    assert found["state"] == found["gradients"] == pytest.approx(scattered + half)
    assert found["weights"] == pytest.approx(scattered + 2 * half)


def test_links_between_groups():
    """Two groups of two ranks: what goes between them takes longer where as much comes the other way; a message of
    gossip is one of all ranks of a group; and the center has all weights there and back."""
    near = replace(MACHINE, beta=0.8e-9)
    far = replace(near, far_alpha=1e-3, far_beta=80e-9)
    seconds = predict.predict(MLP, far, 4, near=2).seconds
    both = replace(near, alpha=1e-3, beta=80e-9 * cost_model.TWO_WAYS)
    exchange = cost_model.hierarchical(4, 2.5e7, both) * 4
    assert seconds["sync"] == pytest.approx(step_cost.overlapped(0.3, 0.02, exchange, 4))
    assert seconds["gossip"] == pytest.approx(1e-3 + 2 * 1e8 * 80e-9)
    inside = predict.predict(MLP, near, 2).seconds["sync"]
    there_and_back = 2 * 1e-3 + 1e8 * both.beta  # half of the weights each way, and as much of the other group's
    assert seconds["server"] == pytest.approx(inside + there_and_back, rel=0.02)
    assert predict.predict(MLP, far, 2, near=2).seconds["sync"] == inside


def test_scaling():
    """With more ranks each keeps its rows, or each has fewer."""
    free = Machine(0.0, 1e-15, 1e-15)
    assert predict.predict(MLP, free, 16).seconds["sync"] == pytest.approx(0.32)
    assert predict.predict(MLP, free, 16, "strong").seconds["sync"] == pytest.approx(0.3 / 4 + 0.02)
    assert predict.predict(MLP, free, 1, "strong").seconds["pipe"] == pytest.approx(1.22)


def test_best():
    """The fastest, unless one that changes less is as good; never the server, which is not to be had."""
    assert predict.best({"sync": 1.09, "pipe": 1.0, predict.SERVER: 0.5}) == "sync"
    assert predict.best({"sync": 1.2, "pipe": 1.01, "gossip": 1.0}) == "pipe"
    assert predict.best({"sync": 1.5, "pipe": 1.2, "pipe int8": 1.0}) == "pipe int8"
    assert predict.predict(MLP, Machine(0.0, 1e-15, 1e-15), 8).best == "sync"
    published = Settings.read({"pipe_predict": "off"}, {})
    assert predict.predict(MLP, MACHINE, 2, settings=published).best == "pipe int8"
    assert predict.predict(MLP, MACHINE, 8).best == "elastic"
    slow = predict.predict(MLP, Machine(1e-3, 1e-6, 1e-9), 8)  # ten times the bytes of a step in a second
    assert slow.best.startswith(("local", "elastic"))  # which meet once in many steps


def test_advice():
    """A gain below a tenth is no reason for another answer; what another strategy changes is said."""

    def said(**seconds):
        return predict.advice(predict.Row(4, seconds, {}, predict.best(seconds)))

    begin = "best on 4 ranks: "
    assert said(sync=1.03, pipe=1.0, **{predict.SERVER: 0.1}) == (
        f"{begin}sync; pipe would be 1.03 times as fast, and changes the answer"
    )
    assert said(sync=1.0, pipe=1.0) == f"{begin}sync"
    assert said(sync=1.5, pipe=1.0) == (
        f"{begin}pipe, 1.50 times as fast a step as sync; it changes the answer: gradients are applied a step "
        "late. An accuracy may take more steps: "
        "what a rank predicts of the weights is off by the noise of its rows, and more with a wider pipe"
    )
    for best in ("pipe", "gossip", "local", "elastic int8", "server"):
        assert "An accuracy may take more steps: " in said(**{"sync": 2.0, best: 1.0})
    int8 = predict.Row(4, {"sync": 2.0, "sync int8": 1.0}, {}, "sync int8")
    assert predict.advice(int8).endswith("changes the answer: what travels between nodes is rounded")


def step(rank, compute, apply, nbytes=1000, begin=0.0):
    """A step of a timeline, in microseconds."""
    return Step(rank, "train step", begin, compute + apply, nbytes, {"compute": compute, "apply": apply})


def test_steps_that_xla_divides():
    """Of the slowest rank, without the first steps."""
    steps = [Step(rank, "", 0.0, 1e6 if number < 3 else 2000.0 + rank) for rank in (0, 500) for number in range(9)]
    steps = [replace(step, rank=step.rank // 500) for step in steps]
    said = planning.of_xla(steps, "train.py", 2)
    assert said.startswith("a step of train.py takes 2.5 ms on 2 ranks, with the exchange that XLA makes in it.")


def test_job_of_a_timeline():
    """Of each step the slowest rank, of all steps the median; the first three do not count."""
    slow = [step(0, 9e9, 9e9, 4)] * 3
    first = slow + [step(0, compute, 10) for compute in (100, 120, 300, 140)]
    second = slow + [step(1, compute, 12) for compute in (110, 90, 90, 200)]
    second = [Step(1, s.what, s.begin, s.length, s.nbytes, s.parts) for s in second]
    for one in first:
        one.work = 40.0
    for own, gap in ((first, 5.0), (second, 7.0)):  # microseconds from one step to the next
        for last, one in pairwise(own[3:]):
            one.begin = last.begin + last.length + gap
    job = planning.job_of([*first, *second], "train.py", 2)
    assert job.work == pytest.approx(20e-6)  # the mean of 40 and 0
    assert job.compute == pytest.approx(160e-6)  # between 120 and 200, of 110, 120, 300 and 200
    assert (job.update, job.nbytes, job.ranks) == (pytest.approx(12e-6), 1000, 2)
    assert job.between == pytest.approx(7e-6)
    assert predict.predict(replace(job, update=0.0, between=3.0), MACHINE, 1).seconds["sync"] == job.compute + 3.0
    with pytest.raises(MatexError, match="exchanged no gradients"):
        planning.job_of([step(0, 1, 1, 0)] * 9, "train.py", 1)


@pytest.mark.parametrize("hosts", ["", ["a", "a", "b", "b"], ["a", "b", "c"]])
def test_links(bare_ranks, hosts):
    """One node, two of two ranks, three of one: the same figures on every rank, and all that there is."""
    size = len(hosts) or 3
    found = bare_ranks(measured.machine, (size,), meets="measure", hosts=hosts)[size]
    assert all(one == found[0] for one in found)
    machine = found[0]
    nodes = len(set(hosts)) or 1
    assert machine["node_ranks"] == size // nodes
    assert machine["gamma"] > 0
    for cost in machine["codecs"].values():
        assert all(value > 0 for value in cost.values())
    assert (machine["node_beta"] > 0) == (machine["node_sync"] > 0) == (nodes < size)
    assert (machine["alpha"] > 0) == (machine["beta"] > 0) == (nodes > 1)
    # What is left after the formulas may be nothing on a machine that is busy; see the next test.
    assert machine["alpha_work"] >= 0 and machine["beta_work"] >= 0 and machine["sync"] >= 0 and machine["busy"]
    assert nodes > 1 or machine["alpha_work"] == machine["beta_work"] == machine["sync"] == 0


@pytest.mark.parametrize(("messages", "nbytes"), [(3e-6, 2e-10), (0.0, 2e-10), (3e-6, 0.0)])
def test_what_the_formulas_leave(monkeypatch, messages, nbytes):
    """Work and seconds of an exchange besides what the formulas know are found, with clocks that are exact."""
    known = Machine(alpha=20e-6, beta=1e-9, gamma=1e-10, pieces=lane.PIECES, piece=lane.PIECE_BYTES)
    true = replace(known, sync=4e-5, alpha_work=messages, beta_work=nbytes)
    monkeypatch.setattr(probe, "_sum_costs", lambda ranks, nbytes, rounds: hierarchical(ranks.size, nbytes, true))
    ranks = SimpleNamespace(size=4, allgather=lambda value, what: [value] * 4)
    found = probe._beyond_formulas(ranks, known, 3)
    assert found.alpha_work == pytest.approx(messages, abs=1e-12)
    assert found.beta_work == pytest.approx(nbytes, abs=1e-16)
    assert found.sync == pytest.approx(4e-5)


def test_links_of_a_file(tmp_path):
    """A file that something else wrote is refused by name."""
    path = tmp_path / "links.json"
    path.write_text('{"machine": {}}')
    with pytest.raises(DataError, match="links.json"):
        probe.read(str(path))


def test_without_a_script(tmp_path, monkeypatch, capsys):
    """Nothing is started; table, picture and file."""
    monkeypatch.chdir(tmp_path)
    words = ["--compute", "120ms", "--parameters", "25M", "--network", "1Gbit,50us", "-n", "4", "--ranks", "6000"]
    assert main(["plan", *words, "--update=3ms", "--json", "figures.json", "--bucket-mb", "50"]) == 0
    said = capsys.readouterr().out
    assert "best on 4 ranks: " in said and "6,000" in said
    assert "links carry 0.956 Gbit/s of data, 50.0 µs" in said  # without the headers of frames
    assert max(len(line.rstrip()) for line in said.splitlines()[2:20]) <= 100
    assert "efficiency" not in said and "one-server" not in said
    assert "MB of a rank / ms of a step, by --shard: weights, sums of gradients, 2 slots a weight" in said
    found = json.loads((tmp_path / "figures.json").read_text())
    assert [row["ranks"] for row in found["rows"]] == predict.sizes(4, 6000)
    assert found["job"]["nbytes"] == 1e8 and found["job"]["buckets"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
    assert main(["plan", *words, "--png", "plan.png", "--full"]) == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert "efficiency, %" in said and "one-server: " in said and "drawn: plan.png" in said


def test_cores(tmp_path, monkeypatch):
    """Where computing leaves cores, what an exchange adds and encodes takes no time from it."""
    monkeypatch.chdir(tmp_path)
    words = [
        "--compute",
        "500ms",
        "--parameters",
        "25M",
        "--network",
        "100Gbit,5us",
        "-n",
        "4",
        "--json",
        "figures.json",
    ]
    found = []
    for cores in ("shared", "spare"):
        assert main(["plan", *words, "--cores", cores]) == 0
        rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
        found.append(next(row["seconds"]["pipe int8"] for row in rows if row["ranks"] == 4))
    assert found[0] > found[1] == pytest.approx(0.5), found


def test_script(tmp_path, server):
    """It is run for as many steps as asked for, on the ranks asked for; nothing is left behind."""
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [
        "-n",
        "2",
        "--network",
        "10Gbit,20us",
        "--per-node=2",
        "--threads",
        "1",
        "--steps",
        "8",
        "--json",
        "figures.json",
    ]
    job = Job([LAUNCHER, "plan", *words, "train.py"], tmp_path, **server.environ)
    ended = job.end(180)
    assert ended.code == 0, ended.err
    assert "the script went on" not in ended.out
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["job"]["ranks"] == 2 and found["job"]["compute"] > 0 and found["job"]["update"] > 0
    parameters = 8 * 16 + 16 + 16 * 3 + 3
    assert 4 * parameters <= found["job"]["nbytes"] <= 4 * parameters + 4 * ALIGNMENT  # each tensor is aligned
    machine = found["machine"]
    assert machine["node_ranks"] == 2 and machine["node_beta"] > 0
    # Of 1,514 bytes of a full frame 1,448 are data.
    assert (machine["alpha"], machine["beta"]) == (pytest.approx(20e-6), pytest.approx(0.8e-9 * 1514 / 1448))
    assert job.left() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--network"], "--network needs a value"),
        (["--network", "fast", "train.py"], "25Gbit,5us"),
        (["--network", "1Gbit", "train.py"], "25Gbit,5us"),
        (["--network", "0Gbit,1us", "train.py"], "25Gbit,5us"),
        (["--compute", "1ms"], "go together"),
        (["--compute", "1ms", "--parameters", "1M"], "--network 25Gbit,5us"),
        (["--compute", "1ms", "--parameters", "1M", "--network", "1Gbit,1us", "train.py"], "train.py is not run"),
        (["--compute", "soon", "--parameters", "1M"], "120ms"),
        (["-n", "1", "train.py"], "2 or more"),
        (["--steps", "2", "train.py"], "5 or more"),
        (["--threads", "1", "--steps=2", "train.py"], "5 or more"),
        (["--trace", "x.json", "train.py"], "no --trace"),
        (["--scaling", "none", "train.py"], "weak or strong"),
        (["--cores", "2", "train.py"], "cores and ranks as in 2/8"),
        (["--fast", "train.py"], "no flag --fast"),
        (["-n", "2"], "no script"),
        (["nowhere.py"], "no script nowhere.py"),
    ],
)
def test_bad_command_line(words, message, capsys):
    """One clear message, exit code 2."""
    assert main(["plan", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("matex-tf: error: ") and message in said
