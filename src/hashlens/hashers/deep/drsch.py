"""DSCH and DRSCH, similarity comparison hashing: outputs of a batch in, triplet hinge on weighted bits out."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from hashlens.data.labels import Labels, relevant
from hashlens.errors import UsageError
from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.deep.heads import keep_bits
from hashlens.hashers.deep.hinge import ranking_hinge, squared_distances

# A batch of the released configuration has 100 pictures. lambda weighs the regulariser of one picture, half the sum
# over its pairs, against the mean over triplets; against the mean over pairs it is lambda * 100 / 2.
HALF_PAIRS = 50
UNLIKE = 0.001  # affinity of pictures that share no label, as in the released configuration


@dataclass(kw_only=True, eq=False, repr=False)
class DSCH(DeepHasher):
    """Deep similarity comparison hashing: bits with weights, the lightest of which can be left out.

    R. Zhang, L. Lin, R. Zhang, W. Zuo, L. Zhang, "Bit-Scalable Deep Hashing with Regularized Similarity Learning for
    Image Retrieval and Person Re-Identification", IEEE Transactions on Image Processing 2015; without its regulariser.

    With v = 2 sigmoid(slope u) - 1, weights w of the bits, and D_ij = sum_k w_k^2 (v_ik - v_jk)^2, minimises over the
    triplets (query, positive, negative) the sum of max(D_qp - D_qn, threshold).

    Parameters
    ----------
    threshold : C < 0 of the paper; triplets below it are settled. A bit of weight 1 that differs adds 4 to D.
        -n_bits, a quarter of the bits, if None, which is ours; the released configuration starts at -5.
    slope, growth : the slope at the first epoch, and how many times larger it is at the last one, so that v nears
        sgn(u). 1 is ours: with the 5 of the released configuration, bits saturate within the first steps at our rates
        and some stay dead. Released are steps of 1.1 every 10,000 iterations; 4 is near what they come to.
    head, backbone, weights, image_size, frozen_blocks, training : as in DTSH.

    Differences from the paper: the backbone is EfficientNet-Lite and its leading blocks stay frozen; one linear layer
    where the paper has two ("layers" is as the paper); AdamW with a one-cycle schedule; horizontal flips. Triplets are
    all those in the batch, and the hinge is a mean over them. The threshold stays as it is, where the released
    configuration lowers it slowly. Codes are compared by plain Hamming distance; the weights are in `bit_weights_`.
    """

    name = "dsch"

    threshold: float | None = None
    slope: float = 1.0
    growth: float = 4.0

    def truncate(self, n_bits: int) -> Self:
        """The same hasher with only its `n_bits` heaviest bits, the heaviest first."""
        if not self.is_fitted():
            raise UsageError(f"this {type(self).__name__} has learnt nothing yet: call fit first")
        if not 1 <= n_bits <= self.n_bits:
            raise UsageError(f"a code of {self.n_bits} bits can be cut to 1 to {self.n_bits} bits, not to {n_bits}")
        bits = np.argsort(-(self.bit_weights_**2), kind="stable")[:n_bits]
        shorter = copy.copy(self)
        shorter.n_bits = n_bits
        shorter.bit_weights_ = self.bit_weights_[bits]
        *blocks, head = self.network_
        shorter.network_ = nn.Sequential(*blocks, keep_bits(head, torch.from_numpy(bits)))
        return shorter

    def _loss(self, labels: Labels) -> nn.Module:
        return self._comparison(0.0)

    def _comparison(self, lambda_bar: float) -> nn.Module:
        threshold = -float(self.n_bits) if self.threshold is None else self.threshold
        if threshold >= 0:
            raise UsageError(f"the threshold must be below 0, not {threshold}")
        if self.slope <= 0 or self.growth <= 0:
            raise UsageError(f"slope and growth must be above 0, not {self.slope} and {self.growth}")
        return SimilarityComparison(threshold, self.slope, self.growth, lambda_bar, self.n_bits)

    def _fit(self, X: Any, labels: Labels | None, **how: Any) -> None:
        assert labels is not None
        loss = self._loss(labels)
        super()._fit(X, labels, loss=loss, **how)
        assert isinstance(loss.w, torch.Tensor)
        self.bit_weights_ = loss.w.detach().cpu().numpy()

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        learnt, arrays = super()._state()
        return learnt, arrays | {"bit_weights": self.bit_weights_}

    def _restore(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        arrays = dict(arrays)
        self.bit_weights_ = arrays.pop("bit_weights")
        super()._restore(config, arrays)


@dataclass(kw_only=True, eq=False, repr=False)
class DRSCH(DSCH):
    """Deep regularised similarity comparison hashing: DSCH with a Laplacian regulariser.

    R. Zhang, L. Lin, R. Zhang, W. Zuo, L. Zhang, "Bit-Scalable Deep Hashing with Regularized Similarity Learning for
    Image Retrieval and Person Re-Identification", IEEE Transactions on Image Processing 2015.

    Minimises the sum of DSCH + lambda / 2 sum_ij A_ij D_ij over the pairs of a batch, which is lambda tr(R^T Lap R) for
    the rows r = w v and the Laplacian of A; A_ij is 1 where i and j share a label and 0.001 where they do not.

    Parameters
    ----------
    lambda_ : weight of the regulariser, 0.001 as released. It is counted for one picture of a released batch of 100,
        which is our reading, chosen among others also because it scored best in short trials; the same balance is kept
        whatever the size of the batch.
    threshold, slope, growth, head, backbone, weights, image_size, frozen_blocks, training : as in DSCH.

    Differences from the paper: those of DSCH. The Laplacian has the sums of A on its diagonal, with the sign that makes
    the regulariser positive, about which the released code looks inconsistent.
    """

    name = "drsch"

    lambda_: float = 0.001

    def _loss(self, labels: Labels) -> nn.Module:
        return self._comparison(self.lambda_ * HALF_PAIRS)


class SimilarityComparison(nn.Module):
    """Mean over queries of the mean of max(D_qp - D_qn, threshold) over their triplets, + lambda_bar mean of A_ij D_ij.

    `w`, the weights of the bits, is learnt; `slope` follows the epochs.
    """

    def __init__(self, threshold: float, slope: float, growth: float, lambda_bar: float, n_bits: int):
        super().__init__()
        self.threshold = threshold
        self.first_slope = slope
        self.growth = growth
        self.lambda_bar = lambda_bar
        self.w = nn.Parameter(torch.ones(n_bits))
        self.register_buffer("slope", torch.tensor(float(slope)))
        self.slope: torch.Tensor

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        self.slope.fill_(self.first_slope * self.growth ** (epoch / max(1, epochs - 1)))

    def forward(self, u: torch.Tensor, labels: Labels, rows: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
        v = torch.tanh(self.slope.to(u) * u / 2)  # 2 sigmoid(slope u) - 1
        distances = squared_distances(self.w.to(u) * v)
        same = torch.from_numpy(relevant(labels, labels)).to(u)
        hinge, active = ranking_hinge(distances, same, -self.threshold)
        regulariser = (distances * same.clamp(min=UNLIKE)).mean()
        return hinge + self.threshold + self.lambda_bar * regulariser, {"active": active}
