"""Who gossips with whom (GossipGraD, arXiv 1803.05880, the parts on dissemination and on the rotation of partners).

Ranks stand in an order. In step k of a round a rank sends to the one 2^k places further on and receives from the one
2^k places before (dissemination), or swaps with the one whose place differs in bit k (hypercube). A round has
ceil(log2 p) steps, after which what any rank had has reached all. Then the order changes.

The orders are chosen so that partners stay new for as long as possible:

- Hypercube, p = 2^m. A place is an element of GF(2^m), and the order of round j is place times x^(m j), for a
  primitive x. So step t pairs ranks that differ by x^t, and those are all differences before one comes again: every
  pair meets in p - 1 steps, which is the least that is possible.
- Dissemination, any p. Let P be the smallest odd prime that is at least p. The order of a round is 0, g, 2g, 3g, …
  modulo P, for a g of its own, without the numbers from p on. Two ranks differ by some ±g, and are neighbours in that
  order; numbers that are left out never part neighbours. So when each g up to (P - 1)/2 has had its round every pair
  has met as neighbours: after (P - 1)/2 rounds, which is less than p (Bertrand: P < 2p). And as steps 2^k of order g
  do what neighbours of order 2^k g do (exactly, where p is a prime), the next round takes 2^L g, for rounds of L
  steps. So nearly all pairs meet much sooner; where p is a prime all do in little more than (p - 1)/2 steps, the least
  that is possible.

After all orders have had their round it begins again, with places given to ranks anew. Everything follows from the
number of ranks and the seed, so ranks need not talk about it.
"""

from __future__ import annotations

import numpy as np

KINDS = ("dissemination", "hypercube")


def fits(kind: str, size: int) -> bool:
    """Whether `size` ranks can have partners of this `kind`: a hypercube has 2, 4, 8, … ranks."""
    return kind == "dissemination" or (kind == "hypercube" and size & (size - 1) == 0)


class Partners:
    """The partners of p ranks, step by step.

    Args:
        size: the number of ranks, p; 1 has no partners.
        seed: the same on every rank.
        kind: "dissemination", for any p; or "hypercube", where p is a power of two.

    Attributes:
        round_steps: steps of a round, ceil(log2 p); within any whole round everything reaches everyone.
        bound: after so many steps from the first every pair has met: one of them has sent to the other.

    Raises:
        ValueError: another kind, or a hypercube of a p that is not a power of two; `Gossip.check` says so to users.
    """

    def __init__(self, size: int, seed: int = 0, kind: str = "dissemination"):
        if not fits(kind, size):
            raise ValueError(f"{size} ranks cannot have partners of the kind {kind!r}")
        self.size, self.seed, self.kind = size, seed, kind
        self.round_steps = (size - 1).bit_length()
        if size == 1:
            self._factors, self.bound = [1], 0
        elif kind == "hypercube":
            self._field = _powers_of_two_in_field(self.round_steps)
            self._factors = list(range(0, size - 1, self.round_steps))  # powers of x
            self.bound = size - 1
        else:
            self._prime = _prime_from(max(size, 3))
            self._factors = _factors(self._prime, self.round_steps, np.random.default_rng([seed, size]))
            self.bound = len(self._factors) * self.round_steps
        self._round, self._order, self._place = -1, np.arange(size), np.arange(size)

    def of(self, step: int, rank: int) -> tuple[int, int]:
        """Whom a rank sends to and whom it receives from.

        Args:
            step: counted from 0; each step of gossip counts, whether or not there were steps without in between.
            rank: from 0 to p - 1.

        Returns:
            (to, source); a world of one rank has itself for both.
        """
        if self.size == 1:
            return rank, rank
        distance = self._turn_to(step)
        place = int(self._place[rank])
        if self.kind == "hypercube":
            partner = int(self._order[place ^ distance])
            return partner, partner
        return int(self._order[(place + distance) % self.size]), int(self._order[(place - distance) % self.size])

    def targets(self, step: int) -> np.ndarray:
        """Whom each rank sends to; int64 of shape (p,), a permutation."""
        if self.size == 1:
            return np.zeros(1, np.int64)
        distance = self._turn_to(step)
        places = self._place ^ distance if self.kind == "hypercube" else (self._place + distance) % self.size
        return self._order[places]

    def _turn_to(self, step: int) -> int:
        """Put ranks in the order of this step; how many places apart partners stand."""
        turn, k = divmod(step, self.round_steps)
        if turn != self._round:
            self._round = turn
            sweep, number = divmod(turn, len(self._factors))
            relabel = np.random.default_rng([self.seed, self.size, sweep]).permutation(self.size)
            self._order = relabel[self._standing(self._factors[number])]
            self._place = np.empty(self.size, np.int64)
            self._place[self._order] = np.arange(self.size)
        return 1 << k

    def _standing(self, factor: int) -> np.ndarray:
        """Who stands at each place, before ranks are given other names."""
        if self.kind == "dissemination":
            around = np.arange(self._prime) * factor % self._prime
            return around[around < self.size]
        # Multiplication by x^factor is linear: each bit of a place goes where its power of x goes.
        standing = np.zeros(self.size, np.int64)
        places = np.arange(self.size)
        for bit in range(self.round_steps):
            standing ^= np.where(places >> bit & 1, self._field[(factor + bit) % (self.size - 1)], 0)
        return standing


def _prime_from(least: int) -> int:
    """The smallest prime that is at least this."""
    while any(least % divisor == 0 for divisor in range(2, int(least**0.5) + 1)):
        least += 1
    return least


def _factors(prime: int, steps: int, random: np.random.Generator) -> list[int]:
    """1 … (P - 1)/2, up to sign, in an order in which `steps` doublings of one are not met again for long.

    Doubling up to sign divides them into cycles of one length. In the first pass each cycle is gone round `steps`
    doublings at a time; the passes after it begin one doubling further on.
    """

    def up_to_sign(number: int) -> int:
        return min(number % prime, -number % prime)

    cycles: list[list[int]] = []
    seen: set[int] = set()
    for first in range(1, (prime + 1) // 2):
        if first not in seen:
            cycle = [first]
            while (following := up_to_sign(2 * cycle[-1])) != first:
                cycle.append(following)
            seen.update(cycle)
            cycles.append(cycle)
    cycles = [cycles[place] for place in random.permutation(len(cycles))]
    return [number for offset in range(steps) for cycle in cycles for number in cycle[offset::steps]]


def _powers_of_two_in_field(bits: int) -> list[int]:
    """x^0, x^1, … x^(2^bits - 2) in GF(2^bits), as the bits of polynomials, for a primitive x."""
    order = (1 << bits) - 1
    for polynomial in range(1 << bits, 2 << bits):
        powers = [1]
        while len(powers) <= order:
            following = powers[-1] << 1
            following ^= polynomial if following >> bits else 0
            if following == 1 or following == 0:
                break
            powers.append(following)
        if len(powers) == order:
            return powers
    raise AssertionError(f"there is a primitive polynomial of every degree, also of {bits}")
