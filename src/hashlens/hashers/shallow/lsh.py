"""LSH, locality sensitive hashing: random projections in, their signs out."""

import numpy as np

from hashlens.hashers.shallow.base import LinearHasher


class LSH(LinearHasher):
    """Locality sensitive hashing by signs of random projections.

    A. Andoni, P. Indyk, "Near-optimal hashing algorithms for approximate nearest neighbor in high dimensions", FOCS
    2006; the sign variant is M. Charikar's, "Similarity estimation techniques from rounding algorithms", STOC 2002.

    Minimises nothing: the directions are drawn from a normal distribution, independent of the data. Two items differ in
    a bit with probability angle / pi.

    Differences from the paper: signs of projections instead of integers floor((a . x + c) / w), which are not bits;
    features are centred by the training mean, because otherwise bits of non-negative features carry little information.
    """

    supervised = False

    def _learn_projection(self, X: np.ndarray, labels: None) -> np.ndarray:
        return np.random.default_rng(self.random_state).standard_normal((X.shape[1], self.n_bits))
