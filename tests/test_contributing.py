"""The examples of docs/contributing.md do what the page says."""


def test_patch(ranks):
    """Rank 0 alone prints a summary. Ranks do not meet for that."""
    for printed in ranks("contributing:patch", [1, 3], meets=None).values():
        assert printed[0] > 0
        assert not any(printed[1:])
