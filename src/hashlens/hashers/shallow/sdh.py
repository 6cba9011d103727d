"""SDH, supervised discrete hashing: similarities to anchors in, codes that a linear classifier can separate out."""

import numpy as np
from scipy import linalg

from hashlens.data.labels import Labels
from hashlens.hashers.shallow.base import KernelHasher, ridge, signs
from hashlens.settings import setting


class SDH(KernelHasher):
    """Supervised discrete hashing.

    F. Shen, C. Shen, W. Liu, H. T. Shen, "Supervised Discrete Hashing", CVPR 2015.

    Minimises ||Y - B G||^2 + lambda ||G||^2 + nu ||B - P||^2 over codes B of the training rows, which stay -1 or 1
    throughout, a classifier G of codes, and P = K W + bias, the prediction of the codes from the similarities K to the
    anchors; Y (n, c) of 0 and 1 says which row has which label.

    Differences from the paper: of its two losses, only the squared one. K is centred and the bias not regularised,
    where the released code adds a column of ones to K. Rows are not scaled to length 1 first, which hardly helps. There
    are more anchors, up to 3,000, and the kernel is narrower; `published` has the paper's.
    """

    needs_pairs = False
    n_anchors: int = setting(3000, "maximum number of anchors; paper: 1,000", published=1000, low=1)
    width: float = setting(
        1 / 6,
        "kernel width relative to the mean squared distance to anchors; released sigma 0.4 is 1/3",
        published=1 / 3,
        above=0,
        search=(0.05, 1.0),
    )
    lambda_: float = setting(1.0, "ridge of the classifier; paper: 1", above=0, search=(0.01, 100.0))
    nu: float = setting(1e-5, "weight of predicting codes from features; paper: 1e-5", low=0)
    ridge: float = setting(1e-2, "ridge of the prediction; released code: 0.01", above=0, search=(1e-4, 10.0))
    n_iterations: int = setting(5, "number of iterations; paper: 5", low=0)
    n_sweeps: int = setting(10, "maximum passes over the bits per iteration; released code: 10", low=0)

    def _learn_projection(self, X: np.ndarray, K: np.ndarray, labels: Labels) -> np.ndarray:
        Y = labels.matrix()
        gram = linalg.cho_factor(K.T @ K + self.ridge * np.eye(K.shape[1]))
        B = np.random.default_rng(self.random_state).choice([-1.0, 1.0], (len(K), self.n_bits))
        W = linalg.cho_solve(gram, K.T @ B)
        for _ in range(self.n_iterations):
            G = ridge(B, Y, self.lambda_)
            P = K @ W + B.mean(0)  # the bias, because K is centred
            B = improved_codes(B, G, Y @ G.T + self.nu * P, self.n_sweeps)
            before, W = W, linalg.cho_solve(gram, K.T @ B)
            if linalg.norm(W - before) < 1e-5 * linalg.norm(before):
                break
        self.bias_ = B.mean(0)
        return W

    def _project(self, X: np.ndarray) -> np.ndarray:
        return super()._project(X) + self.bias_


def improved_codes(B: np.ndarray, G: np.ndarray, Q: np.ndarray, n_sweeps: int) -> np.ndarray:
    """Codes with smaller ||B G||^2 - 2 tr(B^T Q): each bit in turn is set to its best value while the others stay.

    A bit that makes no difference is left unchanged.
    """
    B = B.copy()
    products = G @ G.T  # (n_bits, n_bits)
    for _ in range(n_sweeps):
        before = B.copy()
        for k in range(B.shape[1]):
            pull = Q[:, k] - B @ products[:, k] + B[:, k] * products[k, k]
            B[:, k] = np.where(pull == 0, B[:, k], signs(pull))
        if np.array_equal(B, before):
            break
    return B
