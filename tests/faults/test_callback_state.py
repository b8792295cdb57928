"""What of callbacks goes into checkpoints, and what is said of the rest."""

from tests.support.cases import callback_state


def one(ranks, case):
    """What a case of one rank returns."""
    return ranks(case, (1,))[1][0]


def test_attributes_come_back(ranks):
    """Plain values, tensors and the functions that compare; what two attributes share they share again."""
    assert one(ranks, callback_state.again) == {
        "one list": True,
        "functions": (True, True, True),
        "a tensor": True,
        "the script's": ("mine", 3),
    }


def test_only_known_functions(ranks):
    """A checkpoint cannot name another function than those of keras.ops and NumPy's ufuncs."""
    said = one(ranks, callback_state.names)
    assert len(said) == 4 and "it names os 'system', which is not known" in said[3], said


def test_what_is_lost_is_named(ranks):
    """Objects that may change, of callbacks of the script's own; each once. Not functions, files, models, classes."""
    said = one(ranks, callback_state.lost)
    named = [line.partition("leave out ")[2].partition(":")[0] for line in said]
    assert named == ["Tally.seen is a Seen", "Tally.held[1]['in'] is a Seen", "Tally.lock is a lock"], said
