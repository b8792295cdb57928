"""Random training jobs on real ranks, beside one rank: `scripts/fuzz_fit --programs 200 --seed 0`.

Ranks are started once. Each program runs on one rank and on three, or on two. History, weights,
slots and predictions are compared in float64. It prints a line for each program that differs, and its seed.
"""

from __future__ import annotations

import os
import sys

import compare
from pool import Outcome, Pool, plan

from tests.support import cases, fuzzing, named

named.stand_in(cases)
TOLERANCE = 1e-9
WHOLE = "computed whole by every rank"


def sizes(seed: int) -> tuple[int, ...]:
    return (1, 2) if seed % 3 == 2 else (1, 3)


def wrong(outcomes: list[Outcome]) -> str:
    """What is wrong with a program; "" if nothing is."""
    failed = [one for one in outcomes if one.error]
    if failed and all(outcome.kinds[:1] == outcomes[0].kinds[:1] for outcome in outcomes):
        return ""  # one rank cannot do it either
    if failed:
        return f"rank {failed[0].rank} of {failed[0].size}: {failed[0].error}\n{failed[0].traceback[-3000:]}"
    for outcome in outcomes[1:]:
        differences = list(compare.difference(outcomes[0].value[0], outcome.value[0], TOLERANCE, 1e-9))
        if differences:
            about = "\n    ".join([str(outcome.value[1]), *differences[:6]])
            return f"rank {outcome.rank} of {outcome.size} differs from one rank: {about}"
        if outcome.size > 1 and not any("sums" in name for name in outcome.calls) and WHOLE not in outcome.output:
            return f"ranks did not meet in steps: {outcome.calls} {outcome.value[1]}"
    return ""


class Fuzz:
    """Tries programs in ranks that start once."""

    def __init__(self) -> None:
        self.pool, self.whole, self.refused = Pool(), 0, 0

    def failure(self, seed: int) -> str:
        outcomes = []
        for groups in plan(sizes(seed)):
            outcomes += self.pool.run(cases.random_fits.fitted, groups, {"seed": seed}, 600.0)
        found = sorted((one for ranks in outcomes for one in ranks), key=lambda one: (one.size, one.rank))
        self.refused += bool(found[0].error)
        lines = {line for one in found if one.size > 1 for line in one.output.splitlines() if WHOLE in line}
        self.whole += bool(lines)
        if os.environ.get("FUZZ_TOLD"):
            spent = sum(one.cpu for one in found)
            told = found[0].error or found[0].value[1]
            print(f"seed {seed}: {spent:.0f} s, {told}", *sorted(lines), sep="\n    ", flush=True)
        return wrong(found)


def main() -> int:
    fuzz = Fuzz()
    try:
        return fuzzing.main("Random training jobs on real ranks, beside one rank.", "programs", fuzz.failure)
    finally:
        fuzz.pool.close()
        print(f"{fuzz.refused} that one rank cannot do, {fuzz.whole} with something that is computed whole", flush=True)


if __name__ == "__main__":
    sys.exit(main())
