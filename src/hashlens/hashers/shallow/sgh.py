"""SGH, scalable graph hashing: similarities to anchors in, bits whose products fit a graph of all rows out."""

import numpy as np

from hashlens.hashers.shallow.base import KernelHasher, signs
from hashlens.hashers.shallow.spectral import eigenvectors
from hashlens.machine import blocks
from hashlens.settings import setting

RHO = 2.0  # the width of S; in the unit ball |2 x . y / RHO| <= 1, where a line approximates e^t (`graph_factor`)
BLOCK = 10_000  # rows of P in memory at once


class SGH(KernelHasher):
    """Scalable graph hashing with feature transformation.

    Q.-Y. Jiang, W.-J. Li, "Scalable Graph Hashing with Feature Transformation", IJCAI 2015.

    Minimises ||n_bits S - sgn(K W) sgn(K W)^T||^2 with w^T K^T K w = n for each column w of W, where K are centred
    similarities to the anchors and S_ij = 2 exp(-|x_i - x_j|^2 / 2) - 1 is never formed: a line in place of e^t
    makes it P Q^T with d + 2 columns. W is found bit by bit, each for the residual of the others, then each once more.

    Differences from the paper: for S, which suits only features in the unit ball, rows are centred and divided by their
    length; the paper does not specify a scale. Once the graph is exhausted, as with fewer features or anchors than
    bits, further bits are those that contradict it least.
    """

    supervised = False

    n_anchors: int = setting(300, "number of anchors; paper: 300", low=1)

    def _learn_projection(self, X: np.ndarray, K: np.ndarray, labels: None) -> np.ndarray:
        X = onto_unit_sphere(X)
        KP = sum(K[rows].T @ graph_factor(X[rows]) for rows in blocks(len(X), BLOCK))
        KQ = KP * last_negative(KP.shape[1])
        order = np.random.default_rng(self.random_state).permutation(self.n_bits)
        return factorising_projection(K, self.n_bits * KP @ KQ.T, self.n_bits, order)


def onto_unit_sphere(X: np.ndarray) -> np.ndarray:
    """Rows minus their mean, scaled to length 1; 0 for rows equal to the mean."""
    X = X - X.mean(0)
    lengths = np.sqrt(np.square(X).sum(1, keepdims=True))
    X /= np.where(lengths > 1e-9 * lengths.max(), lengths, np.inf)  # smaller is the rounding of rows equal to the mean
    return X


def graph_factor(X: np.ndarray) -> np.ndarray:
    """P (n, d + 2), for which P Q^T is nearly S when Q is P with its last column negated.

    S_ij = 2 f_i f_j e^t - 1 with f_i = exp(-|x_i|^2 / RHO) and t = 2 x_i . x_j / RHO, and for t from -1 to 1 the line
    (t (e - 1/e) + e + 1/e) / 2 approximates e^t.
    """
    f = np.exp(np.square(X).sum(1, keepdims=True) / -RHO)
    slope, height = np.e - 1 / np.e, np.e + 1 / np.e
    return np.hstack([np.sqrt(2 * slope / RHO) * f * X, np.sqrt(height) * f, np.ones_like(f)])


def last_negative(n: int) -> np.ndarray:
    """(n,): ones, then -1; P times this is Q."""
    return np.append(np.ones(n - 1), -1.0)


def factorising_projection(K: np.ndarray, A: np.ndarray, n_bits: int, order: np.ndarray) -> np.ndarray:
    """W (m, n_bits) for K (n, m) and A = K^T n_bits S K; each bit is found in turn, then again in `order`."""
    m = K.shape[1]
    Z = K.T @ K + 1e-6 * np.eye(m)  # the ridge of the authors' code
    W, V = np.empty((m, n_bits)), np.zeros((m, n_bits))
    for bit in [*range(n_bits), *order]:
        A = A + np.outer(V[:, bit], V[:, bit])
        W[:, bit] = np.sqrt(len(K)) * eigenvectors((A + A.T) / 2, 1, Z)[1][:, 0]
        V[:, bit] = K.T @ signs(K @ W[:, bit])
        A = A - np.outer(V[:, bit], V[:, bit])
    return W
