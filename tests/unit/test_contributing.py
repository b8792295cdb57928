"""The examples of docs/contributing.md do what the page says."""

import numpy as np
import pytest
import virtual


def test_strategy(ranks):
    """All ranks end with the same weights; no gradient was longer than 1, so no sum of n ranks is longer than n."""
    for size, found in ranks("contributing:strategy", [2, 3]).items():
        assert all(weights == found[0][0] for weights, _ in found)
        assert found[0][1] == pytest.approx(size, rel=1e-5)


def example(heading):
    from cases.contributing import example

    return example(heading)


def test_algorithm():
    arrays = [np.arange(5.0) + rank for rank in range(4)]
    virtual.run(example("An algorithm between nodes")["star"], arrays)
    assert all(np.array_equal(array, 4 * np.arange(5.0) + 6) for array in arrays)


def test_file_format(ranks, tmp_path):
    """The ranks have all rows together, each once; a file that is cut off is refused by all. Nobody names the format.

    Ranks that read exchange no gradients.
    """
    rows = np.arange(21, dtype="<f4").reshape(7, 3)
    path = tmp_path / "rows.flt"
    path.write_bytes(b"FLT1" + (3).to_bytes(4, "little") + rows.tobytes())
    given = {"path": str(path), "folder": str(tmp_path)}
    for found in ranks("contributing:file_format", [1, 3], meets="", **given).values():
        assert [row for part, _ in found for row in part] == rows.tolist()
        assert {name for _, name in found} == {"flt"}
    path.write_bytes(path.read_bytes()[:-1])
    ranks.refused("contributing:file_format", [3], error="DataError", **given)


def test_patch(ranks):
    """Rank 0 alone prints a summary. Ranks do not meet for that."""
    for printed in ranks("contributing:patch", [1, 3], apart="it prints what a patch does on each rank").values():
        assert printed[0] > 0
        assert not any(printed[1:])
