"""Every row is used once an epoch, by one rank: the work is shared out, not done on every rank."""

import pytest

from tests.support.cases import shares


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_rows_are_shared_out(ranks, kind):
    """107 rows, batch 50: each batch is split among the ranks as evenly as can be."""
    results = ranks(shares.rows, (1, 3, 4) if kind == "arrays" else None, kind=kind)
    for size, values in results.items():
        for method, epochs in (("fit", 2), ("evaluate", 1), ("predict", 1)):
            batches = [value[method] for value in values]
            assert [len(b) for b in batches] == [3 * epochs] * size, f"{method}: batches by rank"
            used = sorted(row for rank in batches for batch in rank for row in batch)
            assert used == sorted(list(range(107)) * epochs), f"{method} on {size} ranks"
            for position, total in enumerate([50, 50, 7] * epochs):
                parts = [len(rank[position]) for rank in batches]
                assert sum(parts) == total and max(parts) - min(parts) <= 1
            assert [len({row for row in rank_rows}) for rank_rows in [sum(rank[:3], []) for rank in batches]] == [
                len(sum(rank[:3], [])) for rank in batches
            ], "no row twice in an epoch"
