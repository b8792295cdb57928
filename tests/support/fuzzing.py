"""What the programs that draw from a seed have in common: `main`."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def main(title: str, things: str, failure: Callable[[int], str]) -> int:
    """Try the seeds that the command line asks for, and print those that fail.

    Args:
        things: what is made of a seed, in the plural: the name of the flag.
        failure: what is wrong with a seed; "" if nothing is.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument(f"--{things}", type=int, default=200, help="how many", dest="count")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    options = parser.parse_args()
    failed = 0
    for seed in range(options.seed, options.seed + options.count):
        wrong = failure(seed)
        if wrong:
            failed += 1
            print(f"seed {seed}: {wrong}", flush=True)
    print(f"{options.count} {things}, {failed} failed", flush=True)
    return 1 if failed else 0
