"""Paths that only one rank knows: rank 0's is written to, and each rank finds under its own what one rank finds."""

from tests.support.cases import paths


def test_temporary_folders(ranks):
    """Models, weights, exports, checkpoints, logs and backups in a folder that each rank has made for itself."""
    for values in ranks(paths.folders).values():
        for found in values:
            assert found and not [name for name, right in found.items() if not right]


def test_a_script_changes_its_file(ranks):
    """A file under a path of a rank's own is its own; a large one is rank 0's, and a line says so."""
    for values in ranks(paths.changed, (1, 3)).values():
        for found in values:
            assert found and not [name for name, right in found.items() if not right]
    said = ranks.last[3][0].output
    assert said.count("other ranks have it as a link under their own path") == 1, said


def test_names_of_the_clock(ranks):
    """Names that differ by rank, in folders that all share; at the end there is what one rank writes, once."""
    results = ranks(paths.names)
    left = results[1][0][1]
    assert left == ["", ".csv", ".keras", "at "]
    for size, values in results.items():
        for rank, (found, names, count) in enumerate(values):
            assert all(found.values()), (size, rank, found)
            assert names == (left if rank == 0 else []) and count == len(left), (size, rank, names)
