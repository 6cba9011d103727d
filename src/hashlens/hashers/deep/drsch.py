"""DSCH and DRSCH, similarity comparison hashing: outputs of a batch in, triplet hinge on weighted bits out."""

from typing import Any

import torch
from torch import nn

from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.losses import Loss, ranking_hinge, same_class, squared_distances
from hashlens.settings import setting

# A batch of the released configuration has 100 images. lambda multiplies half the sum over an image's pairs, beside a
# mean over triplets; for the mean over pairs the factor is lambda * 100 / 2.
HALF_PAIRS = 50
UNLIKE = 0.001  # affinity of images that share no label, as in the released configuration


class DSCH(DeepHasher):
    """Deep similarity comparison hashing: weighted bits.

    R. Zhang, L. Lin, R. Zhang, W. Zuo, L. Zhang, "Bit-Scalable Deep Hashing with Regularized Similarity Learning for
    Image Retrieval and Person Re-Identification", IEEE Transactions on Image Processing 2015; without its regulariser.

    With v = 2 sigmoid(slope u) - 1, weights w of the bits, and D_ij = sum_k w_k^2 (v_ik - v_jk)^2, minimises over the
    triplets (query, positive, negative) the sum of max(D_qp - D_qn, threshold).

    Differences from the paper: the backbone is EfficientNet-Lite and its leading blocks stay frozen; one linear layer
    where the paper has two (head="layers" has both); AdamW with a one-cycle schedule; horizontal flips. Triplets are
    all those in the batch, and the hinge is a mean over them. The threshold is constant, where the released
    configuration lowers it slowly. Codes are compared by plain Hamming distance. `bit_weights_` has the weights; for a
    shorter code, keep the columns of `signs()` with the largest squared weights.
    """

    beside_network = ("bit_weights",)

    threshold: float | None = setting(None, "triplets below it are settled; none: -n_bits; released: -5", below=0)
    slope: float = setting(1.0, "slope of the sigmoid in the first epoch; released: 5", above=0)
    growth: float = setting(4.0, "factor by which the slope grows until the last epoch", above=0)

    def _keep(self, loss: Any, features: Any) -> None:
        self.bit_weights_ = loss.w.detach().cpu().numpy()


class DRSCH(DSCH):
    """Deep regularised similarity comparison hashing: DSCH with a Laplacian regulariser.

    R. Zhang, L. Lin, R. Zhang, W. Zuo, L. Zhang, "Bit-Scalable Deep Hashing with Regularized Similarity Learning for
    Image Retrieval and Person Re-Identification", IEEE Transactions on Image Processing 2015.

    Minimises the sum of DSCH + lambda / 2 sum_ij A_ij D_ij over the pairs of a batch, which is lambda tr(R^T Lap R) for
    the rows r = w v and the Laplacian of A; A_ij is 1 where i and j share a label and 0.001 where they do not.

    Differences from the paper: those of DSCH. The Laplacian has the sums of A on its diagonal, with the sign that makes
    the regulariser positive; the released code looks inconsistent here.
    """

    lambda_: float = setting(0.001, "weight of the regulariser, for batches of 100 as released", low=0)

    def _loss(self, labels: Any) -> Loss:
        return DRSCHLoss(self.n_bits, self.threshold, self.slope, self.growth, lambda_=self.lambda_)


class DSCHLoss(Loss):
    """Mean over queries of the mean of max(D_qp - D_qn, threshold) over their triplets, + lambda_bar mean of A_ij D_ij.

    The bit weights `w` are learned; `slope` changes with the epoch.
    """

    lambda_bar = 0.0
    slope: torch.Tensor

    def __init__(
        self, n_bits: int, threshold: float | None = None, slope: float = DSCH.slope, growth: float = DSCH.growth
    ):
        super().__init__(n_bits)
        self.threshold = -float(n_bits) if threshold is None else threshold
        self.first_slope, self.growth = slope, growth
        self.w = nn.Parameter(torch.ones(n_bits))
        self.register_buffer("slope", torch.tensor(float(slope)))

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        self.slope.fill_(self.first_slope * self.growth ** (epoch / max(1, epochs - 1)))

    def compute(self, u: torch.Tensor, labels: torch.Tensor, rows: Any) -> tuple[torch.Tensor, float]:
        v = torch.tanh(self.slope.to(u) * u / 2)  # 2 sigmoid(slope u) - 1
        distances = squared_distances(self.w.to(u) * v)
        same = same_class(labels, labels).to(u)
        hinge, active = ranking_hinge(distances, same, -self.threshold)
        regulariser = (distances * same.clamp(min=UNLIKE)).mean()
        return hinge + self.threshold + self.lambda_bar * regulariser, active


class DRSCHLoss(DSCHLoss):
    """DSCHLoss with the Laplacian regulariser; the arguments are the same."""

    def __init__(self, n_bits: int, *of_dsch: Any, lambda_: float = DRSCH.lambda_, **named: Any):
        super().__init__(n_bits, *of_dsch, **named)
        self.lambda_bar = lambda_ * HALF_PAIRS
