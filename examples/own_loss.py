"""Your own loss in 30 lines, compared with other methods

A contrastive loss on relaxed codes becomes a method like any other: trained by the same loop, saved, encoded,
compared.
"""

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

from hashlens import DeepHasher, Training, compare, setting
from hashlens.losses import Loss


class Contrastive(DeepHasher):
    """Pairs of one class nearer than `near` bits, others at least `far` bits apart."""

    near: float = setting(2.0, "bits up to which a pair of one class has no loss", low=0, search=(0.0, 8.0))
    far: float = setting(8.0, "bits from which a pair of two classes has no loss", low=1, search=(4.0, 24.0))


class ContrastiveLoss(Loss):  # found by its name, built from the settings that it asks for
    def __init__(self, n_bits: int, near: float, far: float):
        super().__init__(n_bits)
        self.near, self.far = near, far

    def compute(self, u, labels, rows):
        codes = torch.tanh(u)
        distance = (self.n_bits - codes @ codes.T) / 2
        same = labels[:, None] == labels[None, :]
        loss = torch.where(same, F.relu(distance - self.near), F.relu(self.far - distance))
        return loss.mean(), float((loss > 0).float().mean())


X, y = load_digits(return_X_y=True)
quick = Training(epochs=10)
methods = [Contrastive(training=quick), "dtsh", "ksh", "sdh", "itq", "lsh", "classifier"]
table = compare((X / 16, y), methods, bits=[16, 32], out="own-loss")
print(table)
table.plot().figure.savefig("own_loss.png", dpi=110)
