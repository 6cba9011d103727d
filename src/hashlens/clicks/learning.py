"""Learning: outputs of a hash layer and triplets in, a matrix out that changes the layer.

With u' = u A, theta_ij = tanh(u'_i) . tanh(u'_j) / 2 and T = theta_qp - theta_qn - alpha, minimises the mean of DTSH's
log(1 + exp(-T)) over the triplets (query, more, less) plus mu / 2 times the mean change ||u' - u||^2 over the images of
the index: where clicks give no information, the geometry stays the same. With A = I + W B, W W^T = 1 / C and C the
second moments of u, the second term becomes ||B||^2. Only the part of B that the clicked images reach ever differs from
0: B = Q N, with Q an orthonormal basis of their u W, and only N is learned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hashlens.codes import Codes

MARGIN = 1 / 4  # alpha per bit; chosen with mu on data without reported figures (benchmarks/refine.py)
MU = 1.0
USUAL = 50  # number of triplets they were chosen for; with fewer, the geometry weighs more, as in a sum over triplets
RIDGE = 1.0  # on C, relative to its mean eigenvalue: rare directions are not amplified
STEPS = 60
ENOUGH = 1e-5  # stop at a smaller relative improvement per step
SAMPLE = 20_000  # images for measuring the geometry
FOLDS = 5


def geometry(u: np.ndarray) -> tuple[float, np.ndarray]:
    """Facts shared by all calls of `learn` on outputs u: their scale, and the root of C (W: its inverse transpose)."""
    sample = u[:: -(-len(u) // SAMPLE)].astype(np.float64)
    scale = 1 / max(np.abs(sample).mean(), 1e-12)  # scales typical outputs to -1 or 1
    sample *= scale
    C = sample.T @ sample / len(sample)
    C += RIDGE * max(np.diag(C).mean(), 1e-12) * np.eye(len(C))
    return float(scale), np.linalg.cholesky(C)


def learn(
    u: np.ndarray,
    triplets: np.ndarray,
    within: tuple[float, np.ndarray] | None = None,
    *,
    margin: float = MARGIN,
    mu: float = MU,
) -> np.ndarray:
    """A (n_bits, n_bits) for outputs u (n, n_bits), whose geometry is `within`, and rows (query, more, less) (t, 3)."""
    n_bits, mu = u.shape[1], mu * max(1.0, USUAL / len(triplets))
    scale, root = geometry(u) if within is None else within
    rows, places = np.unique(triplets, return_inverse=True)
    query, more, less = places.reshape(-1, 3).T
    z = u[rows].astype(np.float64) * scale
    Q, R = np.linalg.qr(np.linalg.solve(root, z.T))

    def loss(N: np.ndarray) -> tuple[float, np.ndarray]:
        y = np.tanh(z + R.T @ N)
        apart = y[more] - y[less]
        gap = (y[query] * apart).sum(1) / 2 - margin * n_bits
        slope = -np.exp(-np.logaddexp(0, gap))[:, None] / (2 * len(gap))  # of the mean of softplus(-gap), and of theta
        dy = np.zeros_like(y)
        for role, part in ((query, apart), (more, y[query]), (less, -y[query])):
            np.add.at(dy, role, slope * part)
        value = np.logaddexp(0, -gap).mean() + mu / 2 * (N * N).sum()
        return float(value), R @ (dy * (1 - y * y)) + mu * N

    N = _minimum(loss, np.zeros((Q.shape[1], n_bits)), 1 / mu)
    return np.eye(n_bits) + np.linalg.solve(root.T, Q) @ N


def _minimum(loss: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray, step: float) -> np.ndarray:
    """Nesterov's accelerated descent with line search; the momentum is reset where it would increase the loss."""
    x = y = start
    momentum, value = 1.0, loss(start)[0]
    for _ in range(STEPS):
        here, slope = loss(y)
        steep = float((slope * slope).sum())
        while (found := loss(y - step * slope)[0]) > here - step * steep / 2 and step * steep > 1e-12:
            step /= 2
        if found > value:
            if momentum == 1:
                break
            y, momentum = x, 1.0
            continue
        new, following = y - step * slope, (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        x, y = new, new + (momentum - 1) / following * (new - x)
        if value - found < ENOUGH * abs(value):
            break
        value, momentum, step = found, following, 1.5 * step
    return x


def held_back(
    u: np.ndarray, triplets: np.ndarray, within: tuple[float, np.ndarray] | None = None, **how: float
) -> tuple[np.ndarray, np.ndarray]:
    """The gaps of each triplet before and after learning from the triplets of other queries.

    Queries are dealt into folds, so that no triplet is judged by a layer that has seen its query.
    """
    _, query = np.unique(triplets[:, 0], return_inverse=True)
    before, after = gaps(u, triplets), np.empty(len(triplets))
    within = geometry(u) if within is None else within
    for fold in range(min(FOLDS, query.max() + 1)):
        mine = query % FOLDS == fold
        after[mine] = gaps(u, triplets[mine], learn(u, triplets[~mine], within, **how))
    return before, after


def is_better(triplets: np.ndarray, before: np.ndarray, after: np.ndarray) -> bool:
    """Whether held-back gaps grew by more than their standard error, over queries, as marks on one query are alike."""
    _, query = np.unique(triplets[:, 0], return_inverse=True)
    gain = np.bincount(query, after - before)
    return bool(gain.sum() > np.sqrt((gain**2).sum()))


def gaps(u: np.ndarray, triplets: np.ndarray, A: np.ndarray | None = None) -> np.ndarray:
    """How many bits nearer "more" is to its query than "less", (t,), with the codes of u or of u A."""
    rows = [u[role] if A is None else u[role].astype(np.float64) @ A for role in triplets.T]
    query, more, less = (Codes.from_relaxed(one).signs() for one in rows)
    return ((query != less).sum(1) - (query != more).sum(1)).astype(np.float64)
