"""The runner of other projects' tests: what it makes of what ranks say."""

import json

import suites


def written(folder, *ranks):
    """What ranks wrote: test and outcome; None for one that has not ended."""
    for rank, said in enumerate(ranks):
        lines = []
        for test, outcome in said:
            lines.append({"test": test})
            if outcome:
                lines.append({"test": test, "outcome": outcome, "why": f"why {outcome}", "subtests": 0})
        (folder / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"half a')
    return suites.merged(suites.read_records(folder), len(ranks))


def test_of_all_ranks(tmp_path):
    """A test fails where one rank fails, and is unfinished where one has not ended."""
    results, unfinished = written(
        tmp_path,
        [("a", "passed"), ("b", "passed"), ("c", "skipped"), ("d", "passed")],
        [("a", "passed"), ("b", "failed"), ("c", "skipped"), ("d", None)],
    )
    assert {test: result.outcome for test, result in results.items()} == {"a": "passed", "b": "failed", "c": "skipped"}
    assert results["b"].why == "rank 1: why failed" and unfinished == {"d"}


def test_code(capsys):
    """1 for a failure that the table has not, a success that it has, and a test that is gone; else 0."""
    passed, failed = suites.Result("passed"), suites.Result("failed", "rank 0: bad")
    assert suites.report({"a": passed, "b": failed}, {"b": "known"}, True) == 0
    assert "1 passed, 0 skipped, 1 failed, 0 not as expected" in capsys.readouterr().out
    assert suites.report({"b": failed}, {}, True) == 1
    assert "rank 0: bad" in capsys.readouterr().out
    assert suites.report({"b": passed}, {"b": "known"}, True) == 1
    assert suites.report({}, {"b": "known"}, True) == 1
    assert suites.report({}, {"b": "known"}, False) == 0


def test_packages_that_a_suite_can_do_without():
    """A file that needs one which is not there is left out."""
    optional = {"matex_no_such_package": ("a.py", "b.py"), "json": ("a.py",)}
    assert suites.absent_for("a.py", optional) == ["matex_no_such_package"]
    assert suites.absent_for("c.py", optional) == []
