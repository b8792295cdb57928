"""Which images to ask people about: those at the boundary of what a network knows, and no two alike.

Arrays in, arrays out; nothing here knows of files, pages or Keras.
"""

from __future__ import annotations

import numpy as np

#: How images are chosen: --ask.
ASK = ("margin", "entropy", "disagreement", "random")
_FEWEST = 20  # images for UMAP, which looks at 15 neighbours of each
_POOL = 5  # times as many of the least sure as are wanted: k-center chooses among them


def uncertainty(measure: str, probabilities: np.ndarray, disagreement: np.ndarray | None = None) -> np.ndarray:
    """How unsure a network is of each image, float32 (images,), 1 at most.

    Args:
        measure: `margin`: 1 minus the difference of the two largest probabilities. `entropy`: of the probabilities, as
            a share of the largest there can be. `disagreement`: how much augmentation changes the answer; the entropy
            where that was not measured.
        probabilities: (images, classes).
        disagreement: (images,).
    """
    if measure == "margin" and probabilities.shape[1] > 1:
        most = np.partition(probabilities, -2, axis=1)[:, -2:]
        return (1 - (most[:, 1] - most[:, 0])).astype(np.float32)
    if measure == "disagreement" and disagreement is not None:
        return disagreement.astype(np.float32)
    known = np.clip(probabilities, 1e-12, 1)
    return (-(known * np.log(known)).sum(axis=1) / np.log(max(2, known.shape[1]))).astype(np.float32)


def disagreement_of(views: np.ndarray) -> np.ndarray:
    """How far the answers for augmented views of an image are apart: the entropy of their mean less their mean entropy.

    Args:
        views: probabilities (views, images, classes).

    The mutual information of BALD (Houlsby et al., arXiv 1112.5745, equation 2), over augmentations for weights.
    """
    mean = views.mean(axis=0)
    return np.maximum(
        0, uncertainty("entropy", mean) - np.mean([uncertainty("entropy", view) for view in views], axis=0)
    )


def ask(
    measure: str,
    count: int,
    candidates: np.ndarray,
    labelled: np.ndarray,
    probabilities: np.ndarray,
    features: np.ndarray | None,
    disagreement: np.ndarray | None = None,
    seed: int = 0,
) -> np.ndarray:
    """The numbers of the images to ask about, those first that a network would learn most from.

    Of the least sure images, `_POOL` times as many as are wanted, those are taken by k-center that are far from each
    other and from what has a label. With `random` it is any.

    Args:
        candidates, labelled: numbers of images without and with a label.
        probabilities: (images, classes).
        features: (images, width); None leaves diversity out.
    """
    count = min(count, len(candidates))
    if measure == "random":
        return np.random.default_rng(seed).permutation(candidates)[:count]
    unsure = uncertainty(measure, probabilities[candidates], None if disagreement is None else disagreement[candidates])
    pool = candidates[np.argsort(-unsure, kind="stable")[: _POOL * count]]
    if features is None:
        return pool[:count]
    # What stands for a labelled image is its features. A thousand of them say well enough where labels are.
    near = labelled[:: max(1, len(labelled) // 1000)]
    return pool[k_center(features[pool], features[near], count)]


def k_center(points: np.ndarray, taken: np.ndarray, count: int) -> np.ndarray:
    """Places of so many points, each the farthest from those before and from what is taken already.

    Algorithm 1 (k-Center-Greedy) of Sener and Savarese, arXiv 1708.00489.

    Args:
        points: (points, width).
        taken: (others, width), may be empty: then the first point is the first.
    """
    count = min(count, len(points))
    if not count:
        return np.zeros(0, np.int64)
    points, taken = _unit(points), _unit(taken)
    near = (2 - 2 * points @ taken.T).min(axis=1) if len(taken) else np.full(len(points), 4.0)
    chosen = np.empty(count, np.int64)
    for place in range(count):
        chosen[place] = next_one = int(near.argmax())
        near = np.minimum(near, 2 - 2 * points @ points[next_one])
        near[next_one] = -1
    return chosen


def _unit(points: np.ndarray) -> np.ndarray:
    points = points.astype(np.float32)
    return points / (np.linalg.norm(points, axis=1, keepdims=True) + 1e-6)


def plane(features: np.ndarray, method: str = "pca", seed: int = 0) -> np.ndarray:
    """Places of images on a map, float32 (images, 2) between 0 and 1.

    Args:
        features: (images, width).
        method: `pca`, or `umap`, which needs the package umap-learn, and seconds; PCA all the same of a few images.
    """
    points = features.astype(np.float32)
    if method == "umap" and len(points) >= _FEWEST:
        import umap

        flat = umap.UMAP(n_components=2, random_state=seed, n_jobs=1).fit_transform(points)
    else:
        points = points - points.mean(axis=0)
        _, axes = np.linalg.eigh(points.T @ points)
        flat = points @ axes[:, :-3:-1] if axes.shape[1] > 1 else np.repeat(points, 2, axis=1)
        ends = np.percentile(flat, [1, 99], axis=0)  # a few that are far away would press the others together
        flat = np.clip(flat, *ends)
    flat = flat - flat.min(axis=0)
    return (flat / np.maximum(flat.max(axis=0), 1e-9)).astype(np.float32)
