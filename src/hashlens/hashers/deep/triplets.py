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
    Pictures of the batch are never drawn; draws are without replacement where there are 50 to draw from.
    """
    rng = np.random.default_rng(seed)
    outside = np.ones(len(labels), bool)
    outside[rows] = False
    pool = np.flatnonzero(outside)
    positives, negatives = [], []
    if labels.multi:
        for likely in relevant(labels[rows], labels[pool]):
            positives.append([_draw(pool[likely], rng) for _ in range(9)])
            negatives.append([_draw(pool[~likely], rng) for _ in range(9)])
    else:
        members = [pool[labels.values[pool] == c] for c in range(labels.n_classes)]
        present = [c for c in range(labels.n_classes) if len(members[c])]
        for own in labels.values[rows]:
            others = [c for c in present if c != own]
            positives.append([_draw(members[own], rng) for _ in others])
            negatives.append([_draw(members[c], rng) for c in others])
    return np.array(positives), np.array(negatives)


def _draw(members: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(members, DRAWS, replace=len(members) < DRAWS)
