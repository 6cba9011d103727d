"""Your own loss in 30 lines, compared with other methods

A contrastive loss on relaxed codes becomes a method like any other: trained by the same loop, saved, encoded,
compared.

    python examples/own_loss.py        with four others, in a minute
    python examples/own_loss.py all    with all methods
"""

import sys

import torch
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler
from torch.nn import functional as F

from hashlens import METHODS, DeepHasher, Training, compare, setting
from hashlens.losses import Loss


class Contrastive(DeepHasher):
    """Pairs of one class at the same code, others at least `far` of the bits apart."""

    far: float = setting(
        0.4, "share of the bits from which a pair of two classes has no loss", above=0, search=(0.2, 0.5)
    )


class ContrastiveLoss(Loss):  # found by its name, built from the settings that it asks for
    def __init__(self, n_bits: int, far: float):
        super().__init__(n_bits)
        self.far = far

    def compute(self, u, labels, rows):
        codes = torch.tanh(u)
        apart = (1 - codes @ codes.T / self.n_bits) / 2  # share of bits that differ
        same = labels[:, None] == labels[None, :]
        pulled, pushed = apart[same].pow(2), F.relu(self.far - apart[~same]).pow(2)
        return pulled.mean() + pushed.mean(), float((pushed > 0).float().mean())


X, y = load_digits(return_X_y=True)
others = list(METHODS) if "all" in sys.argv else ["sdh", "itq", "lsh", "classifier"]
methods = [Contrastive(training=Training(epochs=20, head_lr=0.05)), *others]
table = compare((StandardScaler().fit_transform(X), y), methods, bits=[16, 32])
print(table)
table.plot().figure.savefig("own_loss.png", dpi=110)
