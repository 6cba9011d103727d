"""MLH, minimal loss hashing: features and labelled pairs in, projections that minimise a loss of distances out."""

import numpy as np

from hashlens.data.labels import Labels
from hashlens.hashers.shallow.base import LinearHasher, signs
from hashlens.settings import setting

PAIRS_PER_ROW = 20  # per epoch; with 5,000 rows, the 100,000 pairs of the authors' code
TRIES = 20  # attempts to draw a dissimilar pair


class MLH(LinearHasher):
    """Minimal loss hashing.

    M. Norouzi, D. J. Fleet, "Minimal Loss Hashing for Compact Binary Codes", ICML 2011.

    With u = W'x and codes h = sgn(u), minimises over pairs (x1, x2) the upper bound
    max_{g1, g2} [loss(|g1 - g2|) + g1 . u1 + g2 . u2] - h1 . u1 - h2 . u2 of the loss of their Hamming distance m, by
    stochastic gradients. The loss is max(m - rho + 1, 0) / (n_bits - rho + 1) / sqrt(lambda) for pairs that share a
    label and max(rho - m + 1, 0) / (rho + 1) sqrt(lambda) for others, as in the authors' code.

    Learning rate, weight decay and epochs were chosen at 24 bits on GIST of CIFAR-10, on rows that are neither training
    rows nor queries.

    Differences from the paper: as in the authors' later code, weight decay instead of columns of W of fixed length. The
    paper searches rho and lambda on a validation set; here each has one default. Half of the pairs are similar,
    whatever the number of classes: a row, one of its labels and another row with that label, all drawn at random.
    Features are centred, each row has length one in training, and there is no bias.
    """

    rho: float = setting(
        0.25, "distance below which pairs count as near, as a fraction of n_bits", low=0, high=1, search=(0.05, 0.5)
    )
    lambda_: float = setting(1.0, "above 1, dissimilar pairs weigh more", above=0, search=(0.1, 10.0))
    n_epochs: int = setting(30, "epochs of 20 pairs per row", low=0, search=(5, 50))
    batch_size: int = setting(100, "pairs per step; authors' code: 100", low=1)
    learning_rate: float = setting(
        0.3, "initial learning rate, which falls linearly to zero", above=0, search=(0.03, 3.0)
    )
    momentum: float = setting(0.9, "momentum; authors' code: 0.9", low=0, below=1)
    weight_decay: float = setting(1e-3, "weight decay of the projection", low=0, search=(1e-4, 0.1))

    def _learn_projection(self, X: np.ndarray, labels: Labels) -> np.ndarray:
        lengths = np.linalg.norm(X, axis=1, keepdims=True)
        X = X / np.maximum(lengths, 1e-9 * lengths.max())
        pairs = Pairs(labels)
        losses = pair_losses(self.n_bits, self.rho * self.n_bits, self.lambda_)
        rng = np.random.default_rng(self.random_state)
        W = 0.1 * rng.standard_normal((X.shape[1], self.n_bits))
        change = np.zeros_like(W)
        n_steps = -(-self.n_epochs * PAIRS_PER_ROW * len(X) // self.batch_size)
        for step in range(n_steps):
            first, second, similar = pairs.draw(self.batch_size, rng)
            gradient = bound_gradient(W, X[first], X[second], losses[similar]) + self.weight_decay * W
            change = self.momentum * change - self.learning_rate * (1 - step / n_steps) * gradient
            W += change
        return W


class Pairs:
    """Pairs of rows, drawn at random: half of them share a label, half do not."""

    def __init__(self, labels: Labels):
        self.has = labels.matrix() > 0  # (n, c)
        paired = self.has & (self.has.sum(0) > 1)  # a class of one row has no pairs
        self.counts = paired.sum(0)
        self.starts = np.cumsum(self.counts) - self.counts
        self.classes, self.members = np.nonzero(paired.T)  # sorted by class; a row occurs once per class

    def draw(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """first (n,), second (n,) and, as 0 or 1, whether they are similar (n,).

        If nearly all rows share a label and no dissimilar pair is found, more than half are similar.
        """
        first, second = self._draw_any(n, rng)
        is_similar = self.similar(first, second)
        for _ in range(TRIES):
            unwanted = np.flatnonzero(is_similar[n // 2 :]) + n // 2
            if len(unwanted) == 0:
                break
            first[unwanted], second[unwanted] = self._draw_any(len(unwanted), rng)
            is_similar[unwanted] = self.similar(first[unwanted], second[unwanted])
        first[: n // 2], second[: n // 2] = self._draw_similar(n // 2, rng)
        is_similar[: n // 2] = True
        return first, second, is_similar.astype(np.intp)

    def similar(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return (self.has[first] & self.has[second]).any(1)

    def _draw_any(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        first = rng.integers(len(self.has), size=n)
        return first, (first + rng.integers(1, len(self.has), size=n)) % len(self.has)

    def _draw_similar(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        place = rng.integers(len(self.members), size=n)
        start, count = self.starts[self.classes[place]], self.counts[self.classes[place]]
        other = start + (place - start + rng.integers(1, count)) % count
        return self.members[place], self.members[other]


def pair_losses(n_bits: int, rho: float, lambda_: float) -> np.ndarray:
    """(2, n_bits + 1): the loss of dissimilar (row 0) and of similar pairs (row 1) at each Hamming distance."""
    m = np.arange(n_bits + 1)
    far, near = np.maximum(rho - m + 1, 0) / (rho + 1), np.maximum(m - rho + 1, 0) / (n_bits - rho + 1)
    return np.stack([far * np.sqrt(lambda_), near / np.sqrt(lambda_)])


def bound_gradient(W: np.ndarray, x1: np.ndarray, x2: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """(d, L): gradient by W of the mean bound over pairs x1, x2 (n, d), whose losses by distance are (n, L + 1)."""
    u1, u2 = x1 @ W, x2 @ W
    g1, g2 = most_violating(u1, u2, losses)
    return (x1.T @ (g1 - signs(u1)) + x2.T @ (g2 - signs(u2))) / len(x1)


def most_violating(u1: np.ndarray, u2: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The signs g1, g2 (n, L) that maximise loss(g1, g2) + g1 . u1 + g2 . u2 for each of n pairs.

    The loss depends only on how many bits differ: for each number, let the bits differ that lose least by it.
    """
    total, difference = u1 + u2, u1 - u2
    gain = np.abs(difference) - np.abs(total)  # from letting each bit differ
    order = np.argsort(-gain, axis=1)
    gains = np.zeros_like(losses)  # (n, L + 1): with 0, 1, ... L bits that differ
    np.cumsum(np.take_along_axis(gain, order, axis=1), axis=1, out=gains[:, 1:])
    n_different = np.argmax(gains + losses, axis=1)
    different = np.empty(gain.shape, bool)
    np.put_along_axis(different, order, np.arange(gain.shape[1]) < n_different[:, None], axis=1)
    g1 = signs(np.where(different, difference, total))
    return g1, np.where(different, -g1, g1)
