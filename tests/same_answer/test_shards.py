"""`--shard state`: the answer of one rank, with each rank holding a part of the optimizer's slots."""

import subprocess
import sys
from pathlib import Path

import pytest
from compare import same

from tests.support.cases import slots

ROOT = Path(__file__).resolve().parents[2]
FORMS = ("own optimizer", "own step", "plain", "accumulated", "scaled", "embedding", "table", "subclass")


@pytest.mark.variants(1)
@pytest.mark.parametrize("form", FORMS)
def test_the_answer_of_one_rank(ranks, form):
    """Fits with an evaluation between them, and with an assignment by the script; each rank holds a third."""
    results = ranks(slots.trained, (1, 3), form=form)
    same({size: [value for value, *_ in values] for size, values in results.items()}, rtol=1e-4, atol=1e-5)
    held, whole = (sum(numbers) for numbers in zip(*(bytes_ for _, bytes_, _ in results[3]), strict=True))
    assert whole and held == whole / 3, "every element once"
    assert max(mine for _, (mine, _), _ in results[3]) < 0.5 * whole / 3
    said = {line for line in results[3][0][2] if "--shard" in line}
    assert len(said) == (form == "own optimizer") and all("rows" in line for line in said), said


@pytest.mark.variants(1)
@pytest.mark.parametrize("shard,hosts", [("gradients", "aab"), ("state", "abc"), ("gradients", "")])
def test_gradients_in_parts_and_hosts(ranks, shard, hosts):
    """Sums of which a rank keeps its part alone; ranks on several hosts."""
    results = ranks(slots.trained, (1, 3), form="plain", shard=shard, hosts=hosts)
    same({size: [value for value, *_ in values] for size, values in results.items()}, rtol=1e-4, atol=1e-5)
    assert all(0 < mine < whole for _, (mine, whole), _ in results[3])


@pytest.mark.variants(1)
@pytest.mark.parametrize("form", (*FORMS[1:], "table adagrad", "table rmsprop"))
def test_weights_in_parts(ranks, form):
    """What is trained, evaluated, predicted, called and assigned is what ranks with whole weights have."""
    results = ranks(slots.with_weights, (3,), form=form)[3]
    for found, _, lines in results:
        exact = form not in ("embedding", "own step", "accumulated")  # a norm of all gradients, whose sum is over parts
        same({1: [found["none"]], 3: [found["weights"]]}, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)
        assert not [line for line in lines if "whole" in line], lines
    whole = {of for _, (_, of), _ in results}
    assert len(whole) == 1 and sum(mine for _, (mine, _), _ in results) == whole.pop() > 0


@pytest.mark.variants(1)
@pytest.mark.parametrize("shard", ["weights", "state"])
def test_saving_and_loading(ranks, tmp_path, shard):
    """Files hold whole values, written by one rank; a model that is loaded goes on as the one that was saved."""
    results = ranks(slots.saved, (1, 3), directory=str(tmp_path), shard=shard)
    assert all(split for values in results.values() for _, split in values)
    same({size: [value for value, _ in values] for size, values in results.items()}, rtol=1e-4, atol=1e-5)


def test_what_a_checkpoint_keeps(ranks):
    """The state of slots and weights in parts, which goes back into parts (`--faults restart`)."""
    for (first, again), split in ranks(slots.kept, (3,))[3]:
        assert split
        same({1: [first], 3: [again]}, rtol=1e-6, atol=1e-7)


def test_a_checkpoint_for_other_numbers_of_ranks(ranks, tmp_path):
    """What three ranks with parts have kept goes on on two, and on one."""
    path = str(tmp_path / "kept")
    first = ranks(slots.handed_on, (3,), path=path)[3]
    others = ranks(slots.handed_on, (1, 2), path=path)
    same({**others, 3: first}, rtol=1e-4, atol=1e-5)
    same({size: [state for state, _ in values] for size, values in {**others, 3: first}.items()}, rtol=0, atol=0)


def test_whole_values_one_after_the_other(ranks, tmp_path):
    """What writes a model gathers a variable, and lets it go; a checkpoint's are kept on rank 0 alone."""
    for rank, (most, total, largest, split) in enumerate(ranks(slots.whole_at_once, (3,), directory=str(tmp_path))[3]):
        assert split and 2 * largest < total
        assert most[".keras"] == most["save_weights"] == largest, most
        assert most["checkpoint"] == (largest if rank else total), most


def test_ranks_number_variables_otherwise(ranks, tmp_path):
    """An error that names both variables, on every rank, and not the values of another; the next file is right."""
    for said, differs in ranks(slots.misnumbered, (3,), directory=str(tmp_path))[3]:
        assert len(said) == 2 and differs == 0, (said, differs)
        assert said[0].count("gather a variable that lies in parts: ") == 2, said[0]
        assert "which this rank does not have" in said[1], said[1]


def test_steps_that_cannot(ranks):
    """Each is refused, and the option is named."""
    for said in ranks(slots.refused, (3,), meets="")[3]:
        assert len(said) == 1 and "--shard state" in said[0] and "run_eagerly=True" in said[0], said


def test_a_compiled_function_of_the_script(ranks):
    """It would see no values: it is refused. A value that one rank alone assigns is found."""
    for said in ranks(slots.read_by_a_function, (3,), meets="")[3]:
        *functions, apart = said
        assert len(functions) == 2 and all("--shard none" in text for text in functions), said
        assert "what was assigned to it" in apart, apart


@pytest.mark.variants(0)
@pytest.mark.parametrize("form", ["python", "none", "weights"])
def test_a_model_that_does_not_fit(form):
    """In 2 GB of its own a process cannot hold the model; four ranks that hold parts of the weights can."""
    script = ["-m", "benchmarks.too_large", "4000", "6"]
    run = [Path(sys.executable).with_name("matex-tf"), "run", "-n", "4", "--shard", form, *script]
    line = [sys.executable, *script] if form == "python" else run
    done = subprocess.run(["prlimit", f"--data={2000 << 20}", *line], cwd=ROOT, capture_output=True, text=True)
    trains = "96028001 parameters, loss 1.14564" in done.stdout
    assert trains == (form == "weights") == (done.returncode == 0), done
