"""Triplets of the authors' released code: rows of a batch in, positives and negatives of each query out."""

from __future__ import annotations

import numpy as np

from hashlens.data.labels import Labels, relevant

DRAWS = 50  # positives, and negatives of each other class


def draw_from_bank(labels: Labels, rows: np.ndarray, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of positives and negatives for each query in the batch, both (b, groups, 50).

    A triplet is any positive of a group with any negative of the same group. Single labels: one group for every other
    class, with positives drawn afresh for each. Several labels, a case that the authors' code does not have: nine
    groups, as many as CIFAR-10 gives, of pictures that share a label with the query and pictures that share none.
    Pictures of the batch are never drawn; draws are without replacement where there are 50 to draw from. Where there is
    nothing to draw, the query itself stands for both the positives and the negatives, which teaches nothing.
    """
    rng = np.random.default_rng(seed)
    outside = np.ones(len(labels), bool)
    outside[rows] = False
    pool = np.flatnonzero(outside)
    pairs: list[list[tuple[np.ndarray, np.ndarray]]] = []  # of each query, (positives, negatives) of each group
    if labels.multi:
        for row, shares in zip(rows, relevant(labels[rows], labels[pool]), strict=True):
            pairs.append([_draw_both(pool[shares], pool[~shares], row, rng) for _ in range(9)])
    else:
        members = [pool[labels.values[pool] == c] for c in range(labels.n_classes)]
        present = np.unique(labels.values)
        for row in rows:
            own = labels.values[row]
            pairs.append([_draw_both(members[own], members[c], row, rng) for c in present if c != own])
    drawn = np.array(pairs)  # (b, groups, 2, 50)
    return drawn[:, :, 0], drawn[:, :, 1]


def _draw_both(
    positives: np.ndarray, negatives: np.ndarray, query: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    if not len(positives) or not len(negatives):
        positives = negatives = np.array([query])
    return _draw(positives, rng), _draw(negatives, rng)


def _draw(members: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(members, DRAWS, replace=len(members) < DRAWS)
