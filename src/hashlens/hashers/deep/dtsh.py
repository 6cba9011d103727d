"""DTSH, deep supervised hashing with triplet labels: outputs of a batch in, likelihood of its triplets out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hashlens.data.labels import Labels, relevant
from hashlens.data.triplets import clean_triplets
from hashlens.errors import UsageError
from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.deep.likelihood import triplet_nll
from hashlens.hashers.deep.training import Training
from hashlens.hashers.deep.triplets import draw_from_bank
from hashlens.progress import Progress

# The authors' code draws 50 positives x 50 negatives x 9 other classes for a query. lambda = 100 weighs one picture's
# quantisation error against the SUM over so many triplets; against their mean it is lambda / 22,500.
TRIPLETS_PER_QUERY = 22_500


@dataclass(kw_only=True, eq=False, repr=False)
class DTSH(DeepHasher):
    """Deep supervised hashing with triplet labels.

    X. Wang, Y. Shi, K. Kitani, "Deep Supervised Hashing with Triplet Labels", ACCV 2016.

    With theta_ij = u_i . u_j / 2 and T = theta_qp - theta_qn - alpha, minimises over the triplets (query, positive,
    negative) the sum of log(1 + exp(-T)) + lambda sum ||u - sgn(u)||^2. A unit of theta is one bit of distance.

    Parameters
    ----------
    alpha : margin in bits; the paper's n_bits / 2 if None.
    lambda_ : weight of the quantisation term as the paper counts it, that is against the sum over 22,500 triplets
        of a picture; the same balance is kept whatever the number of triplets.
    sampling : which triplets of labelled pictures are learnt from. "in-batch": every triplet inside the batch, gradient
        through all three pictures as in the paper's formula; or "published", the authors' released code: positives and
        negatives drawn from the remembered outputs of pictures outside the batch, gradient through the query only.
    head : "linear", the paper's one layer; "layers" or "divide-and-encode", which it names as alternatives.
    backbone, weights : the network below the head, and a file with its weights for those that cannot be downloaded.

    Differences from the paper: the backbone is EfficientNet-Lite and its leading blocks stay frozen; AdamW with a
    one-cycle schedule; horizontal flips. The likelihood is a mean over triplets, not a sum. With
    sampling="published" the gradient is that of the authors' code up to a constant (see `BankTripletLikelihood`).
    """

    name = "dtsh"

    alpha: float | None = None
    lambda_: float = 100.0
    sampling: str = "in-batch"

    @classmethod
    def published(cls, n_bits: int, n_train: int, **changes: Any) -> Self:
        """The authors' released configuration for `n_train` training pictures; `changes` are those you make to it.

        Their step divides a sum over 22,500 triplets by the number of training pictures; here the likelihood is a mean,
        so their rates, 5e-4 for the step and for the decay of the weights, become rates that depend on n_train.
        """
        per_picture = 2 * TRIPLETS_PER_QUERY / n_train
        theirs = Training(
            epochs=100,
            batch_size=128,
            last_batch="keep",
            optimizer="sgd",
            lr=5e-4 * per_picture,
            head_lr=5e-4 * per_picture,
            weight_decay=5e-4 / per_picture,
            schedule="step",
            step_epochs=20,
            step_factor=2 / 3,
            flip=False,
            precision="float32",
        )
        training = replace(theirs, **changes.pop("training", {}))
        asked: dict[str, Any] = {"backbone": "cnn-f", "frozen_blocks": 0, "sampling": "published", **changes}
        return cls(n_bits, training=training, **asked)

    def fit(self, X: Any, y: Any = None, *, triplets: Any = None, **how: Any) -> Self:
        """Learn from pictures or features X and labels y, or from `triplets` of rows (query, positive, negative)."""
        if triplets is None:
            return super().fit(X, y, **how)
        if y is not None:
            raise UsageError("give labels or triplets, not both: with triplets no labels are used")
        X = self._validate(X)
        rows, notes = clean_triplets(triplets, len(X))
        for note in notes:
            (how.get("progress") or Progress(quiet=True)).say(f"note: {note}")
        loss = GivenTripletLikelihood(*self._weights(), rows, len(X), self.n_bits, self.random_state)
        return self._learn(X, None, loss=loss, **how)

    def _weights(self) -> tuple[float, float]:
        """alpha, and lambda against the mean over triplets."""
        return self.n_bits / 2 if self.alpha is None else self.alpha, self.lambda_ / TRIPLETS_PER_QUERY

    def _loss(self, labels: Labels) -> nn.Module:
        alpha, lambda_bar = self._weights()
        if self.sampling == "in-batch":
            return TripletLikelihood(alpha, lambda_bar)
        if self.sampling == "published":
            if len(labels) < 2 * self.training.batch_size:
                raise UsageError(
                    f"published triplets are drawn outside the batch: {len(labels)} pictures are too few for a"
                    f" batch size of {self.training.batch_size}; choose at most {len(labels) // 2}"
                )
            return BankTripletLikelihood(
                alpha, lambda_bar, labels, self.n_bits, self.training.batch_size, self.random_state
            )
        raise UsageError(f"sampling must be in-batch or published, not '{self.sampling}'")


class TripletLikelihood(nn.Module):
    """Mean over queries of [mean of softplus(-T) over the query's triplets in the batch + lambda ||u - sgn(u)||^2].

    `lambda_bar` is the paper's lambda divided by the number of triplets of a query.
    """

    def __init__(self, alpha: float, lambda_bar: float):
        super().__init__()
        self.alpha = alpha
        self.lambda_bar = lambda_bar

    def forward(self, u: torch.Tensor, labels: Labels, rows: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
        same = torch.from_numpy(relevant(labels, labels)).to(u.device)
        likelihood, active = triplet_nll(u @ u.T / 2, same, self.alpha)
        return likelihood + self.lambda_bar * quantisation_error(u), {"active": active}


def quantisation_error(u: torch.Tensor) -> torch.Tensor:
    """Mean over pictures of ||u - sgn(u)||^2; sgn is constant to the derivative."""
    signs = torch.where(u > 0, 1.0, -1.0).to(u.dtype)
    return (u - signs).square().sum(1).mean()


class BankTripletLikelihood(nn.Module):
    """The authors' released loss: remembered outputs, sampled triplets, gradient through the query only.

    Their step moves the output u_k along D_k = sum_t sigmoid(-T)(u_p - u_n) - 4 lambda (u_k - sgn(u_k)), divided by
    the batch size and the number of pictures. With K triplets a query, D_k / batch size is -2 K times the gradient of
    this loss. The sum is divided by the nominal batch size even where the last batch of an epoch is short.
    """

    product = 0.5  # theta_ij is this times u_i . u_j

    def __init__(
        self, alpha: float, lambda_bar: float, labels: Labels, n_bits: int, batch_size: int, random_state: int
    ):
        super().__init__()
        self.alpha = alpha
        self.lambda_bar = lambda_bar
        self.labels = labels
        self.batch_size = min(batch_size, len(labels))
        self.random_state = random_state
        self.register_buffer("bank", torch.zeros(len(labels), n_bits))  # zeros until a picture was first seen
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))
        self.bank: torch.Tensor
        self.draws: torch.Tensor

    def forward(self, u: torch.Tensor, labels: Labels, rows: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
        self.bank[rows] = u.detach().to(self.bank)
        positives, negatives = draw_from_bank(self.labels, rows, [self.random_state, int(self.draws)])
        self.draws += 1
        # theta of each query with its positives and negatives, (b, groups, 50)
        scaled = u[:, None, None, :] * self.product
        theta_positive = (scaled * self.bank[positives]).sum(-1)
        theta_negative = (scaled * self.bank[negatives]).sum(-1)
        gap = theta_positive[..., :, None] - theta_negative[..., None, :] - self.alpha
        nll = F.softplus(-gap).mean((1, 2, 3))  # of each query
        signs = torch.where(u > 0, 1.0, -1.0).to(u.dtype)
        quantisation = (u - signs).square().sum(1)
        with torch.no_grad():
            active = (gap < 0).float().mean().item()
        return (nll + self.lambda_bar * quantisation).sum() / self.batch_size, {"active": active}


class GivenTripletLikelihood(nn.Module):
    """Likelihood of given triplets, of which a batch of pictures seldom holds all three.

    Every triplet with a picture in the batch counts. Pictures outside the batch are represented by their remembered
    outputs, which have no gradient; until a picture was first seen, its triplets wait.
    """

    MOST = 20_000  # triplets a step; of more, that many are drawn

    def __init__(self, alpha: float, lambda_bar: float, triplets: np.ndarray, n: int, n_bits: int, random_state: int):
        super().__init__()
        self.alpha = alpha
        self.lambda_bar = lambda_bar
        self.triplets = torch.from_numpy(triplets)
        self.random_state = random_state
        # the triplets that each picture is part of, one after the other
        self.of_picture = np.argsort(triplets.ravel(), kind="stable") // 3
        self.starts = np.searchsorted(np.sort(triplets.ravel()), np.arange(n + 1))
        self.register_buffer("bank", torch.full((n, n_bits), torch.nan))
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))
        self.bank: torch.Tensor
        self.draws: torch.Tensor

    def forward(self, u: torch.Tensor, labels: None, rows: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
        self.bank[rows] = u.detach().to(self.bank)
        mine = np.unique(np.concatenate([self.of_picture[self.starts[row] : self.starts[row + 1]] for row in rows]))
        rng = np.random.default_rng([self.random_state, int(self.draws)])
        self.draws += 1
        if len(mine) > self.MOST:
            mine = rng.choice(mine, self.MOST, replace=False)
        triplets = self.triplets.numpy()[mine]
        seen = ~self.bank[:, 0].isnan().cpu().numpy()
        triplets = triplets[seen[triplets].all(1)]
        quantisation = self.lambda_bar * quantisation_error(u)
        if not len(triplets):
            return quantisation, {"active": 0.0}
        members, places = np.unique(triplets, return_inverse=True)  # only these are copied
        inside = np.isin(rows, members)
        fresh = torch.from_numpy(np.searchsorted(members, rows[inside])).to(u.device)
        outputs = self.bank[members].to(u.dtype).index_put((fresh,), u[inside])
        query, positive, negative = (outputs[role] for role in places.reshape(-1, 3).T)
        gap = (query * (positive - negative)).sum(1) / 2 - self.alpha
        return F.softplus(-gap).mean() + quantisation, {"active": (gap < 0).float().mean().item()}
