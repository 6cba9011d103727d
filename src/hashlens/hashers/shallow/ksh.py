"""KSH, supervised hashing with kernels: similarities to anchors and labels in, bits that agree within classes out."""

import numpy as np
from scipy import linalg, sparse

from hashlens.data.labels import Labels, relevant
from hashlens.hashers.shallow.base import KernelHasher, signs
from hashlens.hashers.shallow.spectral import leading_eigenvector
from hashlens.settings import setting

TOLERANCE = 1e-2  # stop after a step that changes the smoothed cost per row by less than this
MAX_CURVATURE = 2.0**50


class KSH(KernelHasher):
    """Supervised hashing with kernels.

    W. Liu, J. Wang, R. Ji, Y.-G. Jiang, S.-F. Chang, "Supervised Hashing with Kernels", CVPR 2012.

    Minimises ||S - B B^T / L||^2 over W, where B = sgn(K W) are the codes of L bits, K the centred similarities of the
    training rows to the anchors, and S is 1 for two rows that share a label and -1 for others. Bits are found one after
    another: b makes b^T R b large, where R = L S - (b b^T of all bits before) is what remains to be explained. It
    starts from a spectral relaxation, followed by gradient steps with tanh(z / 2) for the sign; the better of the two
    is kept.

    Differences from the paper: up to 3,000 training rows are anchors, the kernel is narrower and K^T K has a larger
    ridge, which matters most with many classes; `published` has the paper's width and 1,000 anchors, which reproduce
    the figures that others report for KSH on CIFAR-10. All training rows are labelled, where the paper uses 1,000 or
    2,000. R is never formed: its products follow from sums over rows with equal labels. Steps are taken on whitened K,
    where tens of steps do what takes hundreds on K, and the best one is kept, not the last. With no more rows than
    anchors nothing is drawn, and `random_state` changes nothing.
    """

    needs_pairs = False
    n_anchors: int = setting(3000, "maximum number of anchors; paper: 300", published=1000, low=1)
    width: float = setting(
        1 / 3,
        "kernel width relative to the mean squared distance to anchors; paper: 1",
        published=1.0,
        above=0,
        search=(0.05, 2.0),
    )
    ridge: float = setting(
        1e-3, "ridge of K^T K relative to the mean of its diagonal", published=1e-06, above=0, search=(1e-6, 0.1)
    )
    n_iterations: int = setting(50, "maximum gradient steps per bit; released code: 500, no better on CIFAR-10", low=0)

    def _learn_projection(self, X: np.ndarray, K: np.ndarray, labels: Labels) -> np.ndarray:
        Z, factor = whitened(K, self.ridge)
        residue = Residue(labels, self.n_bits)
        projection = np.empty((K.shape[1], self.n_bits))
        for bit in range(self.n_bits):
            spectral = spectral_direction(Z, residue)
            smoothed = smoothed_direction(Z, residue, spectral, self.n_iterations)
            best = max((spectral, smoothed), key=lambda w: residue.explained(signs(Z @ w)))
            residue.subtract(signs(Z @ best))
            projection[:, bit] = best
        return linalg.solve_triangular(factor, projection)


class Residue:
    """R = L S - B B^T (n, n), used only through its products; B has the bits subtracted so far."""

    def __init__(self, labels: Labels, n_bits: int):
        self.members, different = label_groups(labels)
        self.S = n_bits * np.where(relevant(different, different), 1.0, -1.0)  # (u, u)
        self.B = np.empty((len(labels), 0))

    def times(self, V: np.ndarray) -> np.ndarray:
        """R V for V (n,) or (n, m)."""
        return self.members.T @ (self.S @ (self.members @ V)) - self.B @ (self.B.T @ V)

    def within(self, K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F (m, r) and a symmetric C (r, r), for which K^T R K = F C F^T; r is different labels plus bits."""
        return (
            np.column_stack([(self.members @ K).T, K.T @ self.B]),
            linalg.block_diag(self.S, -np.eye(self.B.shape[1])),
        )

    def explained(self, b: np.ndarray) -> float:
        """b^T R b."""
        return float(b @ self.times(b))

    def subtract(self, b: np.ndarray) -> None:
        """Replace R by R - b b^T."""
        self.B = np.column_stack([self.B, b])


def label_groups(labels: Labels) -> tuple[sparse.csr_array, Labels]:
    """The u different labels, or label sets, and a matrix (u, n) of 0 and 1: which rows have each of them."""
    _, first, group = np.unique(labels.values, axis=0, return_index=True, return_inverse=True)
    n = len(labels)
    members = sparse.csr_array((np.ones(n), (group.reshape(-1), np.arange(n))), shape=(len(first), n))
    return members, labels[first]


def whitened(K: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Z (n, m) and a triangular factor F (m, m), for which K = Z F and Z^T Z / n is near the identity.

    Only near, because K^T K may be singular and gets a ridge.
    """
    gram = K.T @ K / len(K)
    gram[np.diag_indices_from(gram)] += ridge * gram.trace() / len(gram)
    factor = linalg.cholesky(gram)
    return linalg.solve_triangular(factor, K.T, trans="T").T, factor


def spectral_direction(Z: np.ndarray, residue: Residue) -> np.ndarray:
    """w (m,) that makes (Z w)^T R (Z w) largest among all w of its length, with |Z w|^2 = n."""
    w = leading_eigenvector(*residue.within(Z))
    return w * np.sqrt(len(Z)) / linalg.norm(Z @ w)


def smoothed_direction(Z: np.ndarray, residue: Residue, start: np.ndarray, n_iterations: int) -> np.ndarray:
    """Nesterov's accelerated steps from `start` towards small -phi^T R phi, phi = tanh(Z w / 2); the best w on the way.

    Z w is carried along with w, so that trying a step length needs no product with Z.
    """
    here = before = (start, Z @ start)
    cost = smoothed_cost(here[1], residue)[0]
    best, least = start, cost
    momentum, last_momentum = 1.0, 0.0
    curvature = 1.0
    for _ in range(n_iterations):
        push = (last_momentum - 1) / momentum
        w, z = (now + push * (now - then) for now, then in zip(here, before, strict=True))
        value, slope = smoothed_cost(z, residue)
        gradient = Z.T @ slope
        step = Z @ gradient
        last_cost = cost
        while True:
            cost = smoothed_cost(z - step / curvature, residue)[0]
            if cost <= value - gradient @ gradient / (2 * curvature):
                break
            curvature *= 2
            if curvature > MAX_CURVATURE:
                return best
        before, here = here, (w - gradient / curvature, z - step / curvature)
        if cost < least:
            best, least = here[0], cost
        if abs(cost - last_cost) <= TOLERANCE * len(Z):
            break
        last_momentum, momentum = momentum, (1 + np.sqrt(1 + 4 * momentum**2)) / 2
    return best


def smoothed_cost(z: np.ndarray, residue: Residue) -> tuple[float, np.ndarray]:
    """-phi^T R phi for phi = tanh(z / 2), and its gradient in z (n,)."""
    phi = np.tanh(z / 2)
    product = residue.times(phi)
    return -float(phi @ product), -product * (1 - phi**2)
