"""Triplets of the authors' released code: rows of a batch in, positives and negatives of each query out."""

from __future__ import annotations

import numpy as np

from hashlens.data.labels import Labels, relevant

DRAWS = 50  # positives, and negatives of each other class


def draw_from_bank(labels: Labels, rows: np.ndarray, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of positives and negatives for each query in the batch, both (b, groups, 50).

    A triplet is any positive of a group with any negative of the same group. Single labels: one group for every other
    class, with new positives drawn for each. Label sets, a case that the authors' code does not have: nine
    groups, as many as CIFAR-10 gives, of images that share a label with the query and images that share none.
    Images of the batch are never drawn; draws are without replacement where there are 50 to draw from. Where there is
    nothing to draw, the query itself is both positive and negative, so the gradient is zero.
    """
    rng = np.random.default_rng(seed)
    outside = np.ones(len(labels), bool)
    outside[rows] = False
    pool = np.flatnonzero(outside)
    pairs: list[list[list[np.ndarray]]] = []  # of each query, [positives, negatives] of each group
    if labels.multi:
        for row, shares in zip(rows, relevant(labels[rows], labels[pool]), strict=True):
            pairs.append([_draw(pool[shares], pool[~shares], row, rng) for _ in range(9)])
    else:
        members = [pool[labels.values[pool] == c] for c in range(labels.n_classes)]
        present = np.unique(labels.values)
        for row in rows:
            own = labels.values[row]
            pairs.append([_draw(members[own], members[c], row, rng) for c in present if c != own])
    drawn = np.array(pairs)  # (b, groups, 2, 50)
    return drawn[:, :, 0], drawn[:, :, 1]


def _draw(positives: np.ndarray, negatives: np.ndarray, query: int, rng: np.random.Generator) -> list[np.ndarray]:
    if not len(positives) or not len(negatives):
        positives = negatives = np.array([query])
    return [rng.choice(members, DRAWS, replace=len(members) < DRAWS) for members in (positives, negatives)]
