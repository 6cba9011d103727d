"""CGHash, column generation hashing: triplets of rows in, one weighted bit after another out."""

from __future__ import annotations

import numpy as np
from scipy import linalg, optimize, sparse, special

from hashlens.data.labels import Labels, relevant
from hashlens.errors import DataError
from hashlens.hashers.shallow.base import LinearHasher
from hashlens.hashers.shallow.spectral import eigenvectors
from hashlens.machine import blocks
from hashlens.settings import setting

ROWS_AT_ONCE = 1000  # per block of label comparisons with all rows
RIDGE = 1e-3  # relative to the mean of the diagonal of X^T X
LEAST_GAIN = 1e-3  # minimum by which a new bit must violate the dual condition
TIE = 1e-9  # gains nearer than this differ by rounding only; take the first
MOST_DOUBLED = 1000  # largest factor on C


class CGHash(LinearHasher):
    """Column generation hashing.

    X. Li, G. Lin, C. Shen, A. van den Hengel, A. Dick, "Learning Hash Functions Using Column Generation", ICML 2013.

    Minimises sum_k w_k + (C / T) sum_r log(1 + exp(-a_r . w)) over bits h_k and weights w >= 0, where a_rk is 1 if bit
    k tells row r of the T triplets from its negative alone, -1 if from its positive alone, else 0. Bits are added one
    after another: first the bit that most violates the condition of the dual problem, sum_r u_r a_rk <= 1; then all
    weights are refitted, and give the dual variables u_r = (C / T) / (1 + exp(a_r . w)).

    Codes are compared by plain Hamming distance, as everywhere here; the weights are kept as `bit_weights_` (n_bits,)
    for the paper's weighted distance.

    Differences from the paper: positives and negatives are drawn from all rows, not from the nearest, which on CIFAR-10
    ranks a whole database far better. Of the losses that the paper allows, the logistic one is used. The paper stops
    when no bit violates the dual condition. To get as many bits as requested, C is then doubled, up to about 1,000
    times its value; after that, bits restart with new triplets, so that each is repeated about equally often.
    `published` has fewer triplets and a smaller C, our choice for CIFAR-10.
    """

    C: float = setting(100.0, "weight of the triplets; our choice", published=30.0, above=0)
    n_triplets: int = setting(30, "random triplets per row; our choice", published=10, low=1)
    n_starts: int = setting(2, "random starts per bit besides a spectral one; they help with few rows", low=0)
    n_iterations: int = setting(20, "maximum L-BFGS steps per start; our choice", low=1)

    def _learn_projection(self, X: np.ndarray, labels: Labels) -> np.ndarray:
        rng = np.random.default_rng(self.random_state)
        spread = X.std()
        X = np.column_stack([X / spread, np.ones(len(X))])
        hyperplanes, weights, C = np.empty((X.shape[1], 0)), np.empty(0), float(self.C)
        while len(weights) < self.n_bits:
            search = BitSearch(X, draw_triplets(labels, self.n_triplets, rng), self.n_starts, self.n_iterations, rng)
            found = generate_bits(search, self.n_bits - len(weights), C, MOST_DOUBLED * self.C)
            hyperplanes, weights, C = np.hstack([hyperplanes, found[0]]), np.append(weights, found[1]), found[2]
        self.bit_weights_ = weights
        self.bias_ = hyperplanes[-1].copy()
        return hyperplanes[:-1] / spread

    def _project(self, X: np.ndarray) -> np.ndarray:
        return super()._project(X) + self.bias_


def generate_bits(search: BitSearch, n_bits: int, C: float, most: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Hyperplanes (d + 1, k) and weights (k,) of k bits, and the C they were found with.

    If no bit violates the dual condition, C is doubled, up to `most`; if that does not help, there are fewer than
    n_bits, but at least one.
    """
    hyperplanes, weights = np.empty((search.X.shape[1], 0)), np.empty(0)
    columns = np.empty((len(search.triplets), 0))
    while len(weights) < n_bits:
        u = dual(columns, weights, C)
        hyperplane, column = search.best(u)
        if u @ column > 1 + LEAST_GAIN or (most <= C and not len(weights)):
            hyperplanes, columns = np.column_stack([hyperplanes, hyperplane]), np.column_stack([columns, column])
            weights = np.append(weights, 0.0)
        elif most > C:
            C *= 2
        else:
            break
        weights = master(columns, C, weights)
    return hyperplanes, weights, C


def draw_triplets(labels: Labels, n_each: int, rng: np.random.Generator) -> np.ndarray:
    """(t, 3) rows: each row `n_each` times, with a row that shares a label and one that does not, without repeats.

    A row with too few of either kind gets fewer triplets.
    """
    found = []
    for block in blocks(len(labels), ROWS_AT_ONCE):
        rows = np.arange(block.start, block.stop)
        alike = relevant(labels[rows], labels)
        itself = rows[:, None] == np.arange(len(labels))
        positive = draw_columns(alike & ~itself, n_each, rng)
        negative = draw_columns(~alike, n_each, rng)
        triplets = np.stack([np.broadcast_to(rows[:, None], positive.shape), positive, negative], axis=2)
        found.append(triplets[(positive >= 0) & (negative >= 0)])
    triplets = np.concatenate(found)
    if not len(triplets):
        raise DataError("no row has one that shares its label and one that does not; learning needs such triplets")
    return triplets


def draw_columns(allowed: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """(q, n) distinct columns allowed in each row, in random order, padded with -1."""
    n = min(n, allowed.shape[1])
    lots = np.where(allowed, rng.random(allowed.shape), 2.0)
    columns = np.argpartition(lots, n - 1, axis=1)[:, :n]
    order = np.argsort(np.take_along_axis(lots, columns, axis=1), axis=1)
    columns = np.take_along_axis(columns, order, axis=1)
    return np.where(np.take_along_axis(allowed, columns, axis=1), columns, -1)


def margins(bits: np.ndarray, triplets: np.ndarray) -> np.ndarray:
    """a (t,) of one bit (n,) bool: 1 where only the negative differs from the row, -1 where only the positive does."""
    anchor, positive, negative = bits[triplets.T]
    return (anchor != negative).astype(np.float64) - (anchor != positive)


def pair_weights(triplets: np.ndarray, u: np.ndarray, n: int) -> sparse.csr_array:
    """Symmetric P (n, n) such that sum_r u_r a_r = s^T P s for signs s (n,)."""
    anchor, positive, negative = triplets.T
    values = np.concatenate([u, -u]) / 4
    pull = sparse.coo_array(
        (values, (np.concatenate([anchor, anchor]), np.concatenate([positive, negative]))), shape=(n, n)
    ).tocsr()
    return (pull + pull.T).tocsr()


class BitSearch:
    """The search for the next bit, over rows X (n, d + 1), with 1 in the last column, and triplets of rows."""

    def __init__(self, X: np.ndarray, triplets: np.ndarray, n_starts: int, n_iterations: int, rng: np.random.Generator):
        self.X, self.triplets = X, triplets
        self.n_starts, self.n_iterations, self.rng = n_starts, n_iterations, rng
        self.gram = X.T @ X
        self.gram[np.diag_indices_from(self.gram)] += RIDGE * self.gram.trace() / len(self.gram)

    def best(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The hyperplane v whose bit [X v > 0] makes sum_r u_r a_r large, and these a (t,).

        L-BFGS, with tanh for the sign, from a spectral and some random starts; the best of all starts and ends.
        """
        pull = pair_weights(self.triplets, u / u.sum(), len(self.X))  # normalised, so that one tolerance fits all
        random = self.rng.standard_normal((self.n_starts, self.X.shape[1]))
        starts = [v * np.sqrt(len(self.X)) / linalg.norm(self.X @ v) for v in (self._spectral(pull), *random)]
        tried = [(v, margins(self.X @ v > 0, self.triplets)) for v in (*starts, *(self._end(v, pull) for v in starts))]
        gains = [u @ a / u.sum() for _, a in tried]
        best = next(i for i, gain in enumerate(gains) if gain > max(gains) - TIE)  # v and -v, for one, have equal gains
        return tried[best]

    def _spectral(self, pull: sparse.csr_array) -> np.ndarray:
        """v that makes (X v)^T P (X v) largest among all v with the same |X v|."""
        return eigenvectors(self.X.T @ (pull @ self.X), 1, self.gram)[1][:, 0]

    def _end(self, start: np.ndarray, pull: sparse.csr_array) -> np.ndarray:
        options = {"maxiter": self.n_iterations}
        return optimize.minimize(smoothed_cost, start, (self.X, pull), jac=True, method="L-BFGS-B", options=options).x


def smoothed_cost(v: np.ndarray, X: np.ndarray, pull: sparse.csr_array) -> tuple[float, np.ndarray]:
    """-s^T P s for s = tanh(X v), and its gradient in v."""
    s = np.tanh(X @ v)
    product = pull @ s
    return -float(s @ product), -2 * X.T @ (product * (1 - s**2))


def master(columns: np.ndarray, C: float, start: np.ndarray) -> np.ndarray:
    """The weights w >= 0 with least sum_k w_k + (C / T) sum_r log(1 + exp(-a_r . w)) for columns a (T, k)."""

    def cost(w: np.ndarray) -> tuple[float, np.ndarray]:
        value = w.sum() + C * np.logaddexp(0, -columns @ w).mean()
        return float(value), 1 - columns.T @ dual(columns, w, C)

    if not len(start):
        return start
    options = {"ftol": 1e-12, "gtol": 1e-6, "maxiter": 1000}
    return optimize.minimize(
        cost, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(start), options=options
    ).x


def dual(columns: np.ndarray, weights: np.ndarray, C: float) -> np.ndarray:
    """u (T,), the dual variables for these weights: how much each triplet still counts."""
    return C / len(columns) * special.expit(-columns @ weights)
