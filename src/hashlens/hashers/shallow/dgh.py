"""DGH, discrete graph hashing: an anchor graph in, codes shared by neighbours, found without relaxation, out."""

import numpy as np
from scipy import linalg, sparse

from hashlens.hashers.shallow.anchor_graph import AnchorGraphHasher, fill_up, graph_eigenvectors, without_noise
from hashlens.hashers.shallow.base import signs
from hashlens.hashers.shallow.spectral import eigenvectors, orthonormal
from hashlens.settings import setting

ROTATIONS = 100  # maximum iterations of the search for the first codes
STEPS = 300  # maximum steps of one B-step
TOLERANCE = 1e-6  # relative change of the objective per iteration


class DGH(AnchorGraphHasher):
    """Discrete graph hashing.

    W. Liu, C. Mu, S. Kumar, S.-F. Chang, "Discrete Graph Hashing", NIPS 2014.

    Maximises tr(B^T A B) + rho tr(B^T Y) over codes B (n, n_bits) and real Y with 1^T Y = 0, Y^T Y = n I, where A are
    the similarities of an anchor graph: B by signs of the gradient and Y in closed form, alternating. A new row gets
    the average code of its neighbours: sgn(z(x) diag(Z^T 1)^-1 Z^T B).

    Differences from the paper: where the graph has fewer eigenvectors than bits (few anchors), B starts from these and
    random rotations of them. Where there are no more training rows than bits, Y cannot have n_bits orthogonal columns;
    Y^T Y / n is then a projection. There are up to 800 anchors; `published` has the paper's 300.
    """

    supervised = False

    rho: float = setting(1.0, "weight of balanced, uncorrelated bits; the paper tunes it, 1 is our choice", low=0)
    rotate: bool = setting(True, "rotate the initial eigenvectors (DGH-R, better in the paper) or not (DGH-I)")
    n_iterations: int = setting(20, "maximum number of iterations", low=0)

    def _learn_projection(self, Z: sparse.csr_array) -> np.ndarray:
        graph = Similarities(Z)
        rng = np.random.default_rng(self.random_state)
        B, Y = self._start(Z)
        before = -np.inf
        for _ in range(self.n_iterations):
            B = ascend(graph, B, Y, self.rho)
            Y = balanced(B, rng)
            after = objective(graph, B, Y, self.rho)
            if after - before <= TOLERANCE * abs(after):
                break
            before = after
        return graph.anchor_means(B)

    def _start(self, Z: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
        W, values = graph_eigenvectors(Z, self.n_bits)
        Y = without_noise(Z @ fill_up(W, self.n_bits, self.random_state))
        if not self.rotate:
            return signs(Y), Y
        rotation, B = best_rotation(without_noise(Z @ fill_up(W * values, self.n_bits, self.random_state)))
        return B, Y @ rotation


class Similarities:
    """A = Z diag(Z^T 1)^-1 Z^T, kept as its factors."""

    def __init__(self, Z: sparse.csr_array):
        self.Z = Z
        self.transposed = Z.T.tocsr()  # row format makes its products faster
        self.mass = Z.sum(0)[:, None]

    def anchor_means(self, B: np.ndarray) -> np.ndarray:
        """(m, n_bits): the mean code of the rows that belong to each anchor."""
        return self.transposed @ B / self.mass

    def apply(self, B: np.ndarray) -> np.ndarray:
        """A B."""
        return self.Z @ self.anchor_means(B)


def objective(graph: Similarities, B: np.ndarray, Y: np.ndarray, rho: float) -> float:
    """tr(B^T A B) + rho tr(B^T Y)."""
    return float(np.vdot(B, graph.apply(B)) + rho * np.vdot(B, Y))


def ascend(graph: Similarities, B: np.ndarray, Y: np.ndarray, rho: float) -> np.ndarray:
    """The B-step: set B to the signs of the gradient until nothing changes; a gradient of 0 keeps a bit."""
    pull = rho * Y
    for _ in range(STEPS):
        gradient = 2 * graph.apply(B) + pull
        moved = np.where(gradient == 0, B, signs(gradient))
        if np.array_equal(moved, B):
            break
        B = moved
    return B


def balanced(B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The Y-step: the Y nearest to B with 1^T Y = 0 and Y^T Y = n I."""
    n, n_bits = B.shape
    centred = B - B.mean(0)
    squares, right = eigenvectors(centred.T @ centred)
    full = int((squares > 1e-8 * n).sum())  # B has integers, so eigenvalues other than 0 are far from it
    left = centred @ right[:, :full] / np.sqrt(squares[:full])
    # for constant or dependent bits any further orthogonal columns will do; n rows allow at most n - 1
    more = min(n_bits, n - 1) - full
    if more:
        drawn = rng.standard_normal((n, more))
        left = orthonormal(np.column_stack([np.full(n, n**-0.5), left, drawn]))[:, 1:]
    return np.sqrt(n) * left @ right[:, : left.shape[1]].T


def best_rotation(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R orthogonal and B = sgn(G R) with tr(B^T G R) large, alternating from R = I."""
    rotation = np.eye(G.shape[1])
    B = signs(G)
    for _ in range(ROTATIONS):
        left, _, right = linalg.svd(G.T @ B)
        rotation = left @ right
        turned = signs(G @ rotation)
        if np.array_equal(turned, B):
            break
        B = turned
    return rotation, B
