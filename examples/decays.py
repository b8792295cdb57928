"""Simulated collisions of protons: a heavy Higgs boson's decays, and top quarks that look like them.

The chain and the 28 inputs are those of Baldi, Sadowski and Whiteson, "Searching for exotic particles in high-energy
physics with deep learning" (Nature Communications 5, 2014, section "Benchmark case for Higgs bosons"):

    signal      g g → H0 → W∓ H± → W∓ W± h → W∓ W± b b
    background  g g → t t → W∓ b W± b

One W decays to a lepton and a neutrino, the other one to two quarks. Decays are isotropic in the rest frame of what
decays; masses follow Breit and Wigner. Jets, lepton and missing momentum are smeared as a detector smears them, and
radiated jets are mixed in. This is no event generator: spins, colour and showers are left out.

    python examples/decays.py 500000      # makes so many events, and prints the AUC of a boosted tree on them
"""

from __future__ import annotations

import sys
import time

import numpy as np

#: 21 quantities that a detector measures, and 7 masses that physicists compute from them.
MEASURED = [
    "lepton_pt", "lepton_eta", "lepton_phi", "missing_pt", "missing_phi",
    *(f"jet{number}_{what}" for number in (1, 2, 3, 4) for what in ("pt", "eta", "phi", "btag")),
]  # fmt: skip
DERIVED = ["m_jj", "m_jjj", "m_lv", "m_jlv", "m_bb", "m_wbb", "m_wwbb"]

# Masses and widths in GeV.
W, TOP, BOTTOM, LIGHT_HIGGS, CHARGED_HIGGS, HEAVY_HIGGS = 80.4, 172.5, 4.7, 125.0, 325.0, 425.0
#: Of jets: the stochastic and the constant term of σ(E)/E, and of their direction; of the rest of the event, in GeV.
STOCHASTIC, CONSTANT, DIRECTION, SOFT = 0.7, 0.05, 0.02, 10.0
#: How often a jet of a b quark is tagged, and one of another kind.
TAGGED, MISTAGGED = 0.7, 0.05
#: Jets that are radiated, on average, and their mean momentum above the threshold.
RADIATED, RADIATED_PT, THRESHOLD = 0.8, 25.0, 20.0


def collisions(events: int, seed: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Simulated collisions that a detector has accepted.

    Args:
        events: how many.
        seed: the same seed gives the same events.

    Returns:
        Inputs, float32 (events, 28): `MEASURED`, then `DERIVED`; logarithms of momenta and masses, each column with
        mean 0 and standard deviation 1. Labels, uint8 (events,): 1 for the signal, about half.
    """
    random = np.random.default_rng(seed)
    inputs, labels, have = [], [], 0
    while have < events:
        label = random.integers(0, 2, 200_000)
        partons, pull = (np.where(label[:, None, None] == 1, *both) for both in zip(
            *(kind(len(label), random) for kind in (_signal, _background)), strict=True
        ))  # fmt: skip
        measured, kept = _detect(partons, pull, random)
        inputs.append(np.concatenate([measured, _masses(measured)], axis=1)[kept])
        labels.append(label[kept])
        have += int(kept.sum())
    table, label = np.concatenate(inputs)[:events], np.concatenate(labels)[:events]
    positive = [name.endswith("_pt") or name in DERIVED for name in [*MEASURED, *DERIVED]]
    table[:, positive] = np.log(np.maximum(table[:, positive], 1.0))
    return ((table - table.mean(axis=0)) / table.std(axis=0)).astype(np.float32), label.astype(np.uint8)


# Four-momenta are arrays of shape (events, 4): energy and momentum along x, y and the beam, in GeV.


def _signal(events: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Lepton, neutrino, two light quarks and two b quarks, (events, 6, 4); and what recoils, (events, 1, 4)."""
    heavy_mass = np.clip(_resonance(HEAVY_HIGGS, 15, events, random), 415, None)
    charged_mass = np.clip(_resonance(CHARGED_HIGGS, 8, events, random), 215, heavy_mass - 85)
    light_mass = _resonance(LIGHT_HIGGS, 1, events, random)
    first_mass, second_mass = _resonance(W, 2.1, events, random), _resonance(W, 2.1, events, random)
    first_mass = np.minimum(first_mass, heavy_mass - charged_mass - 1)
    second_mass = np.minimum(second_mass, charged_mass - light_mass - 1)
    heavy = _produced(heavy_mass, random)
    first, charged = _decay(heavy, heavy_mass, first_mass, charged_mass, random)
    second, light = _decay(charged, charged_mass, second_mass, light_mass, random)
    bottoms = _decay(light, light_mass, BOTTOM, BOTTOM, random)
    return _in_order(first, first_mass, second, second_mass, bottoms, random), -heavy[:, None]


def _background(events: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The same for a pair of top quarks."""
    masses = [np.clip(_resonance(TOP, 1.4, events, random), 130, 220) for _ in range(2)]
    pair_mass = masses[0] + masses[1] + 10 + random.gamma(1.6, 55, events)
    pair = _produced(pair_mass, random)
    ws, bottoms, w_masses = [], [], []
    for mass, top in zip(masses, _decay(pair, pair_mass, *masses, random), strict=True):
        w_masses.append(np.clip(_resonance(W, 2.1, events, random), 40, mass - 10))
        w, bottom = _decay(top, mass, w_masses[-1], BOTTOM, random)
        ws.append(w)
        bottoms.append(bottom)
    return _in_order(ws[0], w_masses[0], ws[1], w_masses[1], bottoms, random), -pair[:, None]


def _in_order(first, first_mass, second, second_mass, bottoms, random) -> np.ndarray:
    """Let one W, drawn at random, decay to a lepton and a neutrino and the other one to quarks."""
    swap = random.random(len(first)) < 0.5
    leptonic, hadronic = np.where(swap[:, None], second, first), np.where(swap[:, None], first, second)
    leptonic_mass, hadronic_mass = np.where(swap, second_mass, first_mass), np.where(swap, first_mass, second_mass)
    decayed = [_decay(leptonic, leptonic_mass, 0.1, 0.0, random), _decay(hadronic, hadronic_mass, 0.3, 0.3, random)]
    return np.stack([*decayed[0], *decayed[1], *bottoms], axis=1)


def _resonance(mass: float, width: float, events: int, random: np.random.Generator) -> np.ndarray:
    """Masses after Breit and Wigner, cut off at eight widths."""
    angle = np.arctan(16.0)
    return mass + width / 2 * np.tan(random.uniform(-angle, angle, events))


def _produced(mass: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """What two gluons make: some transverse momentum, from radiation before, and a boost along the beam."""
    pt, phi = random.gamma(1.5, 25, len(mass)), random.uniform(-np.pi, np.pi, len(mass))
    rapidity = random.normal(0, 0.9, len(mass))
    across = np.hypot(mass, pt)
    return np.stack(
        [across * np.cosh(rapidity), pt * np.cos(phi), pt * np.sin(phi), across * np.sinh(rapidity)], axis=1
    )


def _decay(parent, mass, first_mass, second_mass, random) -> tuple[np.ndarray, np.ndarray]:
    """Two particles, back to back in the rest frame of their parent in a random direction, seen from outside of it."""
    events = len(parent)
    first_energy = (mass**2 + np.square(first_mass) - np.square(second_mass)) / (2 * mass)
    momentum = np.sqrt(np.maximum(first_energy**2 - np.square(first_mass), 0))
    cosine, phi = random.uniform(-1, 1, events), random.uniform(-np.pi, np.pi, events)
    sine = np.sqrt(1 - cosine**2)
    along = momentum[:, None] * np.stack([sine * np.cos(phi), sine * np.sin(phi), cosine], axis=1)
    beta = parent[:, 1:] / parent[:, :1]
    gamma = parent[:, 0] / mass
    dot = (beta * along).sum(axis=1)
    boosted = along + beta * (gamma**2 / (gamma + 1) * dot + gamma * first_energy)[:, None]
    first = np.concatenate([(gamma * (first_energy + dot))[:, None], boosted], axis=1)
    return first, parent - first


def _polar(vector: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Transverse momentum, pseudorapidity and azimuth."""
    pt = np.hypot(vector[..., 1], vector[..., 2])
    return pt, np.arcsinh(vector[..., 3] / np.maximum(pt, 1e-3)), np.arctan2(vector[..., 2], vector[..., 1])


def _vector(pt: np.ndarray, eta: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """The four-momentum of a particle without mass."""
    return np.stack([pt * np.cosh(eta), pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)], axis=-1)


def _wrapped(phi: np.ndarray) -> np.ndarray:
    return (phi + np.pi) % (2 * np.pi) - np.pi


def _detect(partons: np.ndarray, recoil: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """What the detector measures, (events, 21), and whether it accepts an event."""
    events = len(partons)
    lepton = partons[:, 0] * random.normal(1, 0.02, events)[:, None]
    extra = 3  # jets of radiation at most; the first of them recoils against what was produced
    there = random.poisson(RADIATED, events)[:, None] > np.arange(extra)
    pt = THRESHOLD + random.exponential(RADIATED_PT, (events, extra))
    eta, phi = random.normal(0, 1.6, (events, extra)), random.uniform(-np.pi, np.pi, (events, extra))
    phi[:, 0] = _polar(recoil[:, 0])[2]
    radiated = _vector(pt, np.clip(eta, -4, 4), phi) * there[..., None]
    jets = np.concatenate([partons[:, 2:], radiated], axis=1)
    energy = np.maximum(jets[..., 0], 1e-3)
    # A jet loses more than it gains: neutrinos in b jets, energy outside of the cone.
    response = random.normal(0.96, STOCHASTIC / np.sqrt(energy) + CONSTANT) * random.beta(18, 1.2, energy.shape) / 0.94
    pt, eta, phi = _polar(jets)
    pt = pt * np.clip(response, 0.05, 2)
    eta = eta + random.normal(0, DIRECTION, eta.shape)
    phi = _wrapped(phi + random.normal(0, DIRECTION, phi.shape))
    is_bottom = np.isin(np.arange(jets.shape[1]), (2, 3))
    tag = random.random(eta.shape) < np.where(is_bottom, TAGGED, MISTAGGED)
    seen = (pt > THRESHOLD) & (np.abs(eta) < 2.5)

    balance = -lepton[:, 1:3] - (_vector(pt, np.clip(eta, -5, 5), phi) * (pt > 10)[..., None]).sum(axis=1)[:, 1:3]
    balance += (jets.sum(axis=1) + partons[:, 0] + partons[:, 1])[:, 1:3]  # the soft rest recoils against all of it
    balance += random.normal(0, SOFT, (events, 2))

    order = np.argsort(np.where(seen, -pt, 0), axis=1)[:, :4]
    pt, eta, phi, tag = (np.take_along_axis(one, order, axis=1) for one in (pt, eta, phi, tag))
    jets_measured = np.stack([pt, eta, phi, tag], axis=-1).reshape(events, 16)
    lepton_pt, lepton_eta, lepton_phi = _polar(lepton)
    missing = np.hypot(*balance.T), np.arctan2(balance[:, 1], balance[:, 0])
    kept = (lepton_pt > 20) & (np.abs(lepton_eta) < 2.5) & (seen.sum(axis=1) >= 4) & (tag.sum(axis=1) >= 1)
    return np.column_stack([lepton_pt, lepton_eta, lepton_phi, *missing, jets_measured]), kept


def _masses(measured: np.ndarray) -> np.ndarray:
    """The seven masses, (events, 7), of the particles that may have been there."""
    lepton, jets = _vector(*measured[:, :3].T), measured[:, 5:].reshape(-1, 4, 4)
    neutrino = _neutrino(lepton, measured[:, 3], measured[:, 4])
    vectors = _vector(jets[..., 0], jets[..., 1], jets[..., 2])
    # Tagged jets first, by momentum: the first two are taken for those of b quarks.
    order = np.argsort(-jets[..., 3], axis=1, kind="stable")
    first, second, third, fourth = (vectors[np.arange(len(order)), order[:, place]] for place in range(4))
    hadronic, leptonic, bottoms = third + fourth, lepton + neutrino, first + second
    # Of the two ways to give each W its b quark, the one whose masses are closer together.
    ways = [(_mass(hadronic + one), _mass(leptonic + other)) for one, other in ((first, second), (second, first))]
    closer = np.abs(ways[0][0] - ways[0][1]) < np.abs(ways[1][0] - ways[1][1])
    m_jjj, m_jlv = (np.where(closer, *both) for both in zip(*ways, strict=True))
    return np.column_stack([
        _mass(hadronic), m_jjj, _mass(leptonic), m_jlv, _mass(bottoms), _mass(hadronic + bottoms),
        _mass(hadronic + leptonic + bottoms),
    ])  # fmt: skip


def _neutrino(lepton: np.ndarray, pt: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """The neutrino whose mass with the lepton is that of a W: the solution with the smaller momentum along the beam."""
    x, y = pt * np.cos(phi), pt * np.sin(phi)
    lepton_pt = np.hypot(lepton[:, 1], lepton[:, 2])
    a = W**2 / 2 + lepton[:, 1] * x + lepton[:, 2] * y
    root = lepton[:, 0] * np.sqrt(np.maximum(a**2 - (lepton_pt * pt) ** 2, 0))
    both = np.stack([a * lepton[:, 3] + root, a * lepton[:, 3] - root]) / lepton_pt**2
    z = np.where(np.abs(both[0]) < np.abs(both[1]), *both)
    return np.stack([np.sqrt(pt**2 + z**2), x, y, z], axis=1)


def _mass(vector: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(vector[:, 0] ** 2 - (vector[:, 1:] ** 2).sum(axis=1), 0))


def boosted_tree(inputs: np.ndarray, labels: np.ndarray, tested: int = 0) -> float:
    """The AUC of scikit-learn's HistGradientBoostingClassifier on the last rows, a fifth; it learns from the others."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    tested = tested or len(labels) // 5
    model = HistGradientBoostingClassifier(max_iter=200, random_state=7).fit(inputs[:-tested], labels[:-tested])
    return float(roc_auc_score(labels[-tested:], model.predict_proba(inputs[-tested:])[:, 1]))


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    begin = time.perf_counter()
    inputs, labels = collisions(events)
    seconds = time.perf_counter() - begin
    print(f"{events:,} events in {seconds:.1f} s, {labels.mean():.1%} of them signal")
    for what, columns in (("all 28", slice(None)), ("the 21 measured", slice(0, 21)), ("the 7 derived", slice(21, 28))):
        print(f"AUC of a boosted tree on {what} inputs: {boosted_tree(inputs[:, columns], labels):.3f}", flush=True)


if __name__ == "__main__":
    main()
