"""DTSH's triplet likelihoods, one per source of triplets: the batch, class codes, memory or the user."""

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from hashlens.data.labels import Labels, relevant
from hashlens.hashers.deep.likelihood import triplet_nll
from hashlens.hashers.losses import Loss, quantisation_error, same_class

LAMBDA = 100.0  # the paper's
# The authors' code draws 50 positives x 50 negatives x 9 other classes per query. lambda = 100 weighs the quantisation
# error of one image against the SUM over these triplets; against their mean it is lambda / 22,500.
TRIPLETS_PER_QUERY = 22_500
DRAWS = 50  # positives, and negatives of each other class


class DTSHLoss(Loss):
    """Mean of softplus(-T) over the triplets of a query, then over queries, + lambda / 22,500 mean ||u - sgn(u)||^2.

    Triplets are those inside the batch; queries without one do not count in the first mean. The paper's lambda belongs
    to a sum over the 22,500 triplets that its code draws per query; for their mean it is divided by 22,500.
    """

    product = 0.5  # theta_ij is this times u_i . u_j
    own_positive = False  # whether an image is its own positive

    def __init__(self, n_bits: int, alpha: float | None = None, lambda_: float = LAMBDA):
        super().__init__(n_bits)
        self.alpha = n_bits / 2 if alpha is None else alpha
        self.lambda_bar = lambda_ / TRIPLETS_PER_QUERY  # for the mean over the triplets of a query

    def compute(self, u: torch.Tensor, labels: torch.Tensor, rows: Any) -> tuple[torch.Tensor, float]:
        same = same_class(labels, labels)
        itself = torch.eye(len(u), dtype=torch.bool, device=u.device)
        positives = same if self.own_positive else same & ~itself
        nll, active = triplet_nll(u @ u.T * self.product, positives, ~same, self.alpha)
        return nll + self.lambda_bar * quantisation_error(u).mean(), active


class DTSHClassLoss(DTSHLoss):
    """Likelihood of the triplets (image, code of its class, code of another class), over all other classes.

    theta = tanh(u) . code / 2: outputs cannot meet the margin by growing, only by agreeing with more bits. An image
    with several labels has several positives.
    """

    mixes = True
    codes: torch.Tensor

    def __init__(self, n_bits: int, codes: Any, alpha: float | None = None, lambda_: float = LAMBDA):
        """`codes` (n_classes, n_bits) are the class codes, of -1 and 1."""
        super().__init__(n_bits, alpha, lambda_)
        self.register_buffer("codes", torch.as_tensor(codes, dtype=torch.float32))

    def compute(self, u: torch.Tensor, labels: torch.Tensor, rows: Any) -> tuple[torch.Tensor, float]:
        theta = torch.tanh(u) @ self.codes.to(u).T * self.product
        own = labels if labels.ndim == 2 else F.one_hot(labels, len(self.codes)).bool()
        nll, active = triplet_nll(theta, own, ~own, self.alpha)
        return nll + self.lambda_bar * quantisation_error(u).mean(), active


class _RememberingLoss(DTSHLoss):
    """A likelihood that remembers outputs in a `bank` (n, n_bits), filled with `unseen` at first."""

    needs_labels, needs_rows = False, True
    bank: torch.Tensor
    draws: torch.Tensor

    def __init__(self, n_bits: int, n: int, unseen: float, alpha: float | None, lambda_: float, random_state: int):
        super().__init__(n_bits, alpha, lambda_)
        self.random_state = random_state
        self.register_buffer("bank", torch.full((n, n_bits), unseen))
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def remember(self, u: torch.Tensor, rows: np.ndarray) -> list[int]:
        """Remember the outputs of a batch; returns a seed for the random draws of this step."""
        self.bank[rows] = u.detach().to(self.bank)
        self.draws += 1
        return [self.random_state, int(self.draws) - 1]


class DTSHBankLoss(_RememberingLoss):
    """The authors' released loss: remembered outputs, sampled triplets, gradient through the query only.

    Their step moves the output u_k along D_k = sum_t sigmoid(-T)(u_p - u_n) - 4 lambda (u_k - sgn(u_k)), divided by
    the batch size and the number of images. With K triplets per query, D_k / batch size is -2 K times the gradient of
    this loss. The sum is divided by the nominal batch size even where the last batch of an epoch is short.
    """

    def __init__(
        self,
        n_bits: int,
        labels: Any,
        batch_size: int,
        alpha: float | None = None,
        lambda_: float = LAMBDA,
        random_state: int = 0,
    ):
        """`labels` has the labels of the whole training set."""
        known = Labels.of(labels)
        super().__init__(n_bits, len(known), 0.0, alpha, lambda_, random_state)
        self.labels, self.batch_size = known, min(batch_size, len(known))

    def compute(self, u: torch.Tensor, labels: Any, rows: np.ndarray) -> tuple[torch.Tensor, float]:
        positives, negatives = draw_from_bank(self.labels, rows, self.remember(u, rows))
        # theta of each query with its positives, and with its negatives, (b, groups, 50)
        scaled = u[:, None, None, :] * self.product
        theta_positive = (scaled * self.bank[positives]).sum(-1)
        theta_negative = (scaled * self.bank[negatives]).sum(-1)
        gap = theta_positive[..., :, None] - theta_negative[..., None, :] - self.alpha
        nll = F.softplus(-gap).mean((1, 2, 3))  # of each query
        value = (nll + self.lambda_bar * quantisation_error(u)).sum() / self.batch_size
        return value, (gap < 0).float().mean().item()


def draw_from_bank(labels: Labels, rows: np.ndarray, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of positives and negatives for each query in the batch, both (b, groups, 50).

    A triplet is any positive of a group with any negative of the same group. Single labels: one group for every other
    class, with new positives drawn for each. Label sets, which the authors' code does not handle: nine groups, as many
    as CIFAR-10 gives, of images that share a label with the query and images that share none. Images of the batch are
    never drawn; draws are without replacement where there are 50 to draw from. Where there is nothing to draw, the
    query itself is both positive and negative, so the gradient is zero.
    """
    rng = np.random.default_rng(seed)
    outside = np.ones(len(labels), bool)
    outside[rows] = False
    pool = np.flatnonzero(outside)
    pairs: list[list[list[np.ndarray]]] = []  # of each query, [positives, negatives] of each group
    if labels.multi:
        for row, shares in zip(rows, relevant(labels[rows], labels[pool]), strict=True):
            pairs.append([_draw(pool[shares], pool[~shares], row, rng) for _ in range(9)])
    else:
        members = [pool[labels.values[pool] == c] for c in range(labels.n_classes)]
        present = np.unique(labels.values)
        for row in rows:
            own = labels.values[row]
            pairs.append([_draw(members[own], members[c], row, rng) for c in present if c != own])
    drawn = np.array(pairs)  # (b, groups, 2, 50)
    return drawn[:, :, 0], drawn[:, :, 1]


def _draw(positives: np.ndarray, negatives: np.ndarray, query: int, rng: np.random.Generator) -> list[np.ndarray]:
    if not len(positives) or not len(negatives):
        positives = negatives = np.array([query])
    return [rng.choice(members, DRAWS, replace=len(members) < DRAWS) for members in (positives, negatives)]


class DTSHTripletLoss(_RememberingLoss):
    """Likelihood of given triplets of rows; their three images are rarely in one batch.

    Every triplet with an image in the batch counts. Images outside the batch are represented by their remembered
    outputs, which have no gradient. Triplets with an image not seen yet are left out.
    """

    MOST = 20_000  # triplets per step; if there are more, this many are drawn

    def __init__(
        self,
        n_bits: int,
        triplets: np.ndarray,
        n: int,
        alpha: float | None = None,
        lambda_: float = LAMBDA,
        random_state: int = 0,
    ):
        """`triplets` (t, 3) are row numbers (query, positive, negative) in a training set of n images."""
        super().__init__(n_bits, n, torch.nan, alpha, lambda_, random_state)
        self.triplets = np.asarray(triplets)
        # the triplets of each image, image by image
        self.of_image = np.argsort(self.triplets.ravel(), kind="stable") // 3
        self.starts = np.searchsorted(np.sort(self.triplets.ravel()), np.arange(n + 1))

    def compute(self, u: torch.Tensor, labels: Any, rows: np.ndarray) -> tuple[torch.Tensor, float]:
        rng = np.random.default_rng(self.remember(u, rows))
        mine = np.unique(np.concatenate([self.of_image[self.starts[row] : self.starts[row + 1]] for row in rows]))
        if len(mine) > self.MOST:
            mine = rng.choice(mine, self.MOST, replace=False)
        triplets = self.triplets[mine]
        seen = ~self.bank[:, 0].isnan().cpu().numpy()
        triplets = triplets[seen[triplets].all(1)]
        quantisation = self.lambda_bar * quantisation_error(u).mean()
        if not len(triplets):
            return quantisation, 0.0
        members, places = np.unique(triplets, return_inverse=True)  # copy only these from the bank
        inside = np.isin(rows, members)
        fresh = torch.from_numpy(np.searchsorted(members, rows[inside])).to(u.device)
        outputs = self.bank[members].to(u.dtype).index_put((fresh,), u[inside])
        roles = torch.from_numpy(places.reshape(-1, 3).T.copy()).to(u.device)
        query, positive, negative = (F.embedding(role, outputs) for role in roles)  # as in `ranking_hinge`
        gap = (query * (positive - negative)).sum(1) / 2 - self.alpha
        return F.softplus(-gap).mean() + quantisation, (gap < 0).float().mean().item()
