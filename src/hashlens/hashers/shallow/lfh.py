"""LFH, latent factor hashing: features and pairwise labels in, a regression on factors of the labels out."""

from typing import Any, Self

import numpy as np
from scipy import linalg
from scipy.special import expit

from hashlens.data.labels import Labels, relevant
from hashlens.hashers.shallow.base import LinearHasher, ridge
from hashlens.hashers.shallow.ksh import label_groups
from hashlens.hashers.shallow.spectral import principal_directions
from hashlens.settings import setting

MAX_COLUMNS = 1_200


class LFH(LinearHasher):
    """Latent factor hashing.

    P. Zhang, W. Zhang, W.-J. Li, M. Guo, "Supervised Hashing with Latent Factor Models", SIGIR 2014.

    With theta_ij = u_i . u_j / 2 and s_ij = 1 for pairs that share a label, 0 for others, maximises over factors U
    sum_ij (s_ij theta_ij - log(1 + exp(theta_ij))) - ||U||^2 / (2 beta'), beta' = beta / n_bits; then predicts U by
    ridge regression: minimises ||X W - U||^2 + lambda' ||W||^2, lambda' = lambda n / d, for n rows of d features.

    Differences from the paper: as in the authors' code, features have zero mean and equal variance, and factors start
    as their n_bits leading principal components; here components have unit variance, because large ones make every
    sigmoid 0 or 1. If the rank of the features is below n_bits, factors start at random numbers instead. Training rows
    are also encoded by the regression, not by their factors. Similar pairs count as much as dissimilar ones in total,
    and an iteration pairs rows with up to 1,200 others instead of n_bits: with a hundred classes, few of them would
    have a similar row among n_bits, and the factors would collapse. `published` does neither; it has the beta of the
    authors' code and a ridge of 100, chosen on held-out GIST of CIFAR-10.
    """

    beta: float = setting(
        3.0, "variance of the factors times n_bits; authors' code: 30", published=30.0, above=0, search=(1.0, 100.0)
    )
    lambda_: float = setting(
        300.0, "ridge weight relative to n / d; authors' code: 1", published=100.0, above=0, search=(1.0, 3000.0)
    )
    n_columns: int | None = setting(
        None,
        "rows drawn per iteration, which the others are paired with; none: half, at most 1,200; paper: n_bits",
        low=1,
    )
    balance: bool = setting(
        True, "give similar and dissimilar pairs the same total weight; paper: false", published=False
    )
    n_iterations: int = setting(50, "iterations, each updating nearly all rows; authors' code: 50", low=0)

    @classmethod
    def published(cls, n_bits: int = 48, n_train: int = 5_000, **changes: Any) -> Self:
        """The paper's settings, with as many columns as bits."""
        return super().published(n_bits, n_train, **{"n_columns": n_bits, **changes})

    def _learn_projection(self, X: np.ndarray, labels: Labels) -> np.ndarray:
        spread = X.std(0)
        spread[spread <= 1e-12 * np.maximum(np.abs(self.mean_), spread.max())] = np.inf  # constant up to rounding
        X = X / spread
        W = ridge(X, self._factors(X, labels), self.lambda_ * len(X) / X.shape[1])
        return W / spread[:, None]

    def _factors(self, X: np.ndarray, labels: Labels) -> np.ndarray:
        """The factors U (n, n_bits)."""
        rng = np.random.default_rng(self.random_state)
        U = first_factors(X, self.n_bits, rng)
        n_columns = min(self.n_columns or min(MAX_COLUMNS, len(X) // 2), len(X) - 1)
        groups, weights = [np.arange(len(X))], (1.0, 1.0)
        if self.balance:  # rows with the same labels have the same weights
            groups, weights = balanced_groups(labels)
        for _ in range(self.n_iterations):
            columns = rng.permutation(len(X))[:n_columns]
            for group in groups:
                rows = np.setdiff1d(group, columns, assume_unique=True)
                similar = relevant(labels[rows], labels[columns])
                U[rows] = better_rows(U[rows], U[columns], similar, self.beta / self.n_bits, weights)
        return U


def balanced_groups(labels: Labels) -> tuple[list[np.ndarray], tuple[float, float]]:
    """Groups of rows with equal labels, and the weights of dissimilar and similar pairs: equal totals, mean 1."""
    members, different = label_groups(labels)
    sizes = members.sum(1)
    share = sizes @ relevant(different, different) @ sizes / sizes.sum() ** 2  # share of similar pairs
    return np.split(members.indices, members.indptr[1:-1]), (0.5 / (1 - share), 0.5 / share)


def first_factors(X: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """(len(X), n): leading principal components of centred rows X, each of unit variance; random where X has fewer."""
    components = X @ principal_directions(X, n)
    spread = components.std(0)
    known = spread > 1e-6 * spread.max()
    return np.where(known, components / np.where(known, spread, 1), rng.standard_normal(components.shape))


def better_rows(
    U: np.ndarray, others: np.ndarray, similar: np.ndarray, beta: float, weights: tuple[float, float] = (1.0, 1.0)
) -> np.ndarray:
    """Rows U (r, L) after one step up the likelihood of the pairs with `others` (c, L), `similar` (r, c) or not.

    `weights` are for dissimilar and for similar pairs; if they differ, all rows must have the same similar others. A
    Newton step whose Hessian is replaced by a lower bound, the same for all rows: the objective, which counts each pair
    as (i, j) and as (j, i), cannot fall.
    """
    if not len(U):
        return U
    weight = np.where(similar[0], weights[1], weights[0])  # (c,)
    gradient = (weight * (similar - expit(U @ others.T / 2))) @ others - U / beta
    bound = curvature(others, beta, weight)
    return U - linalg.solve(bound, gradient.T, assume_a="sym").T


def curvature(others: np.ndarray, beta: float, weight: np.ndarray) -> np.ndarray:
    """(L, L) negative definite: a bound below the Hessian of any row, because a sigmoid's derivative is at most 1/4."""
    return -(others.T * weight) @ others / 8 - np.eye(others.shape[1]) / beta
