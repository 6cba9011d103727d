"""DTSH, deep supervised hashing with triplet labels: outputs of a batch in, likelihood of its triplets out."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F

from hashlens.data.labels import Labels, relevant
from hashlens.data.triplets import clean_triplets
from hashlens.errors import UsageError
from hashlens.features.networks import Network
from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.deep.class_codes import class_codes, ridge_regression
from hashlens.hashers.deep.heads import FromLongCode, Standardised, build_head
from hashlens.hashers.deep.inputs import outputs_of
from hashlens.hashers.deep.likelihood import triplet_nll
from hashlens.hashers.deep.training import released
from hashlens.hashers.losses import Loss, quantisation_error, same_class
from hashlens.hashers.second import learn_second
from hashlens.progress import Progress, counted
from hashlens.schema import conform, whole
from hashlens.settings import setting

# The authors' code draws 50 positives x 50 negatives x 9 other classes per query. lambda = 100 weighs the quantisation
# error of one image against the SUM over these triplets; against their mean it is lambda / 22,500.
TRIPLETS_PER_QUERY = 22_500
DRAWS = 50  # positives, and negatives of each other class
# triplets inside the batch are enough with this many images per class, on average, in a batch and in all
PAIRS, MANY = 4, 200
# bits that are learned, at least: for a network that is trained, and for fixed features
LONG, LONG_FIXED, MOST_LONG = 256, 512, 4096
FEW = 50  # images per class, below which mixtures of images help
# with class codes: longer, and the statistics of a pretrained network stay as they are
RECIPE = {"images": 45_000, "lr": 2e-3, "head_lr": 5e-3, "weight_decay": 0.1, "adapt": 0.0}


class Triplets(NamedTuple):
    """(t, 3) rows (query, positive, negative) of n images, from which DTSH learns instead of labels."""

    values: Any
    n: int = 0


class DTSH(DeepHasher):
    """Deep supervised hashing with triplet labels.

    X. Wang, Y. Shi, K. Kitani, "Deep Supervised Hashing with Triplet Labels", ACCV 2016.

    With theta_ij = u_i . u_j / 2 and T = theta_qp - theta_qn - alpha, minimises over the triplets (query, positive,
    negative) the sum of log(1 + exp(-T)) + lambda sum ||u - sgn(u)||^2. A unit of theta is one bit of distance.

    Differences from the paper: the backbone is EfficientNet-Lite and its leading blocks stay frozen; AdamW with a
    one-cycle schedule; horizontal flips. The likelihood is a mean over triplets, not a sum. With
    sampling="published" the gradient is that of the authors' code up to a constant (see `DTSHBankLoss`). With
    sampling="class-codes" the positive and the negative of a triplet are codes of classes, which are computed first,
    follow the geometry of the classes and stay fixed, theta is tanh(u) . code / 2, and the hash layer starts as a
    regression (see class_codes.py): with many classes, a batch has few pairs of one class. Where every image has one
    label, a longer code is learned then, from which the bits are written (see `FromLongCode`).
    """

    alpha: float | None = setting(None, "margin in bits; none: the paper's n_bits / 2", low=0, search=(2.0, 48.0))
    lambda_: float = setting(
        100.0,
        "weight of the quantisation term, against a sum over 22,500 triplets; paper: 100",
        low=0,
        search=(1.0, 1000.0),
    )
    sampling: str = setting(
        "auto",
        "in-batch: all triplets inside the batch, gradient through all three; class-codes: every image with the code of"
        " its class and those of all other classes; auto: in-batch with few classes, class-codes with many; published:"
        " the authors' code, drawn from remembered outputs, gradient through the query only",
        choices=("auto", "in-batch", "class-codes", "published"),
        search=["in-batch", "class-codes"],
    )
    long_bits: int | None = setting(
        None,
        "with class codes and one label per image: a code of so many bits is learned, from which the n_bits are"
        " written; 0: they are learned themselves; none: 256, or 512 on fixed features",
        low=0,
        high=MOST_LONG,
    )
    apart: int | None = setting(None, "bits between the codes of any two classes; none: n_bits / 6", low=1)
    spare_bits: int = setting(
        0,
        "with triplets formed inside the batch: the last bits of the code are ITQ of the features instead of learned,"
        " for classes that were not learned from",
        low=0,
    )

    @property
    def needs_pairs(self) -> bool:  # type: ignore[override]
        return self.sampling in ("in-batch", "published")

    @classmethod
    def published(cls, n_bits: int = 48, n_train: int = 5_000, **changes: Any) -> Self:
        """The authors' released configuration for `n_train` training images, with your `changes`.

        Their step divides a sum over 22,500 triplets by the number of training images; here the likelihood is a mean,
        so their learning rate and weight decay of 5e-4 become values that depend on n_train.
        """
        per_image = 2 * TRIPLETS_PER_QUERY / n_train
        decay = 5e-4 / per_image
        theirs = released(5e-4 * per_image, epochs=100, weight_decay=decay, step_epochs=20, step_factor=2 / 3)
        training = replace(theirs, **changes.pop("training", {}))
        asked: dict[str, Any] = {
            "backbone": "cnn-f",
            "frozen_blocks": 0,
            "sampling": "published",
            **changes,
        }
        return cls(n_bits, training=training, **asked)

    def fit(self, X: Any, y: Any = None, *, triplets: Any = None, **how: Any) -> Self:
        """Learn from images or features X and labels y, or from `triplets` of rows (query, positive, negative).

        `run`, `progress` and `stop` are as in other methods.
        """
        if triplets is not None and y is not None:
            raise UsageError("pass either labels or triplets, not both")
        return super().fit(X, y if triplets is None else Triplets(triplets), **how)

    def _targets(self, y: Any, n: int, progress: Progress) -> Any:
        if not isinstance(y, Triplets):
            return super()._targets(y, n, progress)
        rows, notes = clean_triplets(y.values, n)
        for note in notes:
            progress.say(f"note: {note}")
        return Triplets(rows, n)

    def _fit(self, X: Any, labels: Any, **how: Any) -> None:
        self.sampling_ = self._sampling_for(labels)
        self.n_classes_ = self.long_bits_ = 0
        if self.long_bits != 0 and self.sampling_ == "class-codes" and not labels.multi and self.head == "linear":
            usual = LONG_FIXED if self._choose_backbone(X) == "none" else LONG
            self.n_classes_, self.long_bits_ = labels.n_classes, max(self.n_bits, self.long_bits or usual)
        if self.sampling == "auto" and isinstance(labels, Labels):
            formed = "inside each batch" if self.sampling_ == "in-batch" else "with the codes of classes"
            n_classes = counted(int((labels.counts() > 0).sum()), "class")
            Progress.of(how.get("progress", False)).say(f"{n_classes}: triplets are formed {formed}")
        self.spare_bits_ = self._spare_for(labels)
        super()._fit(X, labels, **how)

    def _spare_for(self, labels: Any) -> int:
        if self.spare_bits and (self.sampling_ != "in-batch" or self.head != "linear"):
            raise UsageError("spare_bits needs sampling='in-batch' and a linear hash layer; set it to 0")
        if self.spare_bits >= self.n_bits:
            raise UsageError(f"spare_bits is {self.spare_bits}, which leaves none of {self.n_bits} bits to be learned")
        return self.spare_bits

    def _sampling_for(self, labels: Any) -> str:
        if isinstance(labels, Triplets):
            return "given"
        if self.sampling != "auto":
            return self.sampling
        counts = labels.counts()
        n_classes = (counts > 0).sum()
        in_batch = self.training.batch_size >= PAIRS * n_classes and counts.sum() >= MANY * n_classes
        return "in-batch" if in_batch else "class-codes"

    def _loss(self, labels: Any) -> Loss:
        if isinstance(labels, Triplets):
            return DTSHTripletLoss(self.n_bits, *labels, self.alpha, self.lambda_, self.random_state)
        sampling = self._sampling_for(labels)
        if sampling == "class-codes":
            n_bits = getattr(self, "long_bits_", 0) or self.n_bits  # the loss can be asked for before fitting
            alpha = None if self.alpha is None else self.alpha * n_bits / self.n_bits  # the same share of the bits
            return DTSHClassLoss(n_bits, np.zeros((labels.n_classes, n_bits)), alpha, self.lambda_)
        if sampling == "in-batch":
            return DTSHLoss(self._learned_bits, self.alpha, self.lambda_)
        size = self.training.batch_size
        if len(labels) < 2 * size:
            raise UsageError(
                f"published triplets are drawn outside the batch: {len(labels)} images are too few for a"
                f" batch size of {size}; choose at most {len(labels) // 2}"
            )
        return DTSHBankLoss(self.n_bits, labels, size, self.alpha, self.lambda_, self.random_state)

    def _recipe(self, labels: Any, pretrained: bool) -> Mapping[str, Any]:
        if self.sampling_ != "class-codes":
            return super()._recipe(labels, pretrained)
        counts = labels.counts()
        mixup = 0.2 if counts.sum() < FEW * (counts > 0).sum() else 0.0
        return RECIPE | {"mixup": mixup} | ({} if pretrained else {"lr": 1e-3, "head_lr": 5e-3, "adapt": 1.0})

    def _n_frozen(self, info: Network, n_blocks: int) -> int:
        """With class codes, all but the last two blocks: there are few images per class."""
        if self.sampling_ == "class-codes" and info.frozen and self.image_size_ != info.small:
            return max(info.frozen, n_blocks - 2)
        return super()._n_frozen(info, n_blocks)

    def _chosen(self) -> dict[str, Any]:
        return super()._chosen() | {
            "sampling": self.sampling_,
            "n_classes": self.n_classes_,
            "long_bits": self.long_bits_,
            "spare_bits": self.spare_bits_,
        }

    @property
    def _learned_bits(self) -> int:
        """All until `fit` has chosen, and for the loaded layer of a model, in which the others are already written."""
        return self.n_bits - getattr(self, "spare_bits_", 0)

    def _head(self) -> nn.Module:
        if self.n_classes_:
            return FromLongCode(self.n_features_in_, self.long_bits_, self.n_classes_, self.n_bits)
        return build_head(self.head, self.n_features_in_, self._learned_bits)

    def _keep(self, loss: Any, features: Callable[[], np.ndarray]) -> None:
        """Write the spare bits into the hash layer, with outputs as large as those of the others."""
        if not self.spare_bits_:
            return
        X, learned = features(), self.network_[-1].cpu()
        assert isinstance(learned, nn.Linear)  # `_spare_for` has seen to it
        mean, directions = learn_second(X, self.spare_bits_, self.random_state)
        with torch.inference_mode():
            size = learned(torch.from_numpy(X)).std().item()
        directions *= size / ((X - mean) @ directions).std()
        with torch.random.fork_rng():  # new layers draw weights
            self.network_[-1] = whole = nn.Linear(self.n_features_in_, self.n_bits)
        with torch.no_grad():
            whole.weight.copy_(torch.cat([learned.weight, torch.from_numpy(directions.T).float()]))
            whole.bias.copy_(torch.cat([learned.bias, torch.from_numpy(-mean @ directions).float()]))

    def _restore(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.sampling_ = config["sampling"]
        self.n_classes_ = conform(config.get("n_classes", 0), whole(0, 1_000_000), "n_classes")
        self.long_bits_ = conform(config.get("long_bits", 0), whole(0, MOST_LONG), "long_bits")
        super()._restore(config, arrays)
        self.spare_bits_ = conform(config.get("spare_bits", 0), whole(0, self.n_bits - 1), "spare_bits")

    def _start(self, network: nn.Sequential, inputs: Any, labels: Any, loss: Any, adapt: bool) -> None:
        """Class codes from the features of the untrained network, and a hash layer that predicts them."""
        if not isinstance(loss, DTSHClassLoss):
            return
        features = outputs_of(network[:-1], inputs, adapt)
        standardised = StandardScaler().fit_transform(features.double().numpy())

        def regression(targets: np.ndarray) -> Standardised:
            return Standardised(features, *ridge_regression(standardised, targets))

        def codes_of(n_bits: int) -> np.ndarray:
            apart = round((self.apart or self.n_bits / 6) * n_bits / self.n_bits)
            return class_codes(standardised, labels, n_bits, max(1, apart), self.random_state)

        codes = codes_of(self.long_bits_ or self.n_bits)
        loss.codes.copy_(torch.from_numpy(codes))
        layer = regression((labels.matrix() @ codes).clip(-1, 1))  # of several labels, what most of them agree on
        if isinstance(network[-1], FromLongCode):
            network[-1].start(layer, codes, codes_of(self.n_bits))
        elif isinstance(network[-1], nn.Linear):
            network[-1] = self.network_[-1] = layer


class DTSHLoss(Loss):
    """Mean of softplus(-T) over the triplets of a query, then over queries, + lambda / 22,500 mean ||u - sgn(u)||^2.

    Triplets are those inside the batch; queries without one do not count in the first mean. The paper's lambda stands
    beside a sum over the 22,500 triplets that its code draws per query, so beside their mean it is divided by them.
    """

    product = 0.5  # theta_ij is this times u_i . u_j
    own_positive = False  # whether an image is its own positive

    def __init__(self, n_bits: int, alpha: float | None = DTSH.alpha, lambda_: float = DTSH.lambda_):
        super().__init__(n_bits)
        self.alpha = n_bits / 2 if alpha is None else alpha
        self.lambda_bar = lambda_ / TRIPLETS_PER_QUERY  # against the mean over the triplets of a query

    def compute(self, u: torch.Tensor, labels: torch.Tensor, rows: Any) -> tuple[torch.Tensor, float]:
        same = same_class(labels, labels)
        itself = torch.eye(len(u), dtype=torch.bool, device=u.device)
        positives = same if self.own_positive else same & ~itself
        nll, active = triplet_nll(u @ u.T * self.product, positives, ~same, self.alpha)
        return nll + self.lambda_bar * quantisation_error(u).mean(), active


class DTSHClassLoss(DTSHLoss):
    """Likelihood of the triplets (image, code of its class, code of another class), for all other classes.

    theta = tanh(u) . code / 2: outputs cannot meet the margin by growing, only by agreeing with more bits. An image
    with several labels has several positives.
    """

    mixes = True
    codes: torch.Tensor

    def __init__(self, n_bits: int, codes: Any, alpha: float | None = DTSH.alpha, lambda_: float = DTSH.lambda_):
        """`codes` (n_classes, n_bits) of -1 and 1 are those of the classes."""
        super().__init__(n_bits, alpha, lambda_)
        self.register_buffer("codes", torch.as_tensor(codes, dtype=torch.float32))

    def compute(self, u: torch.Tensor, labels: torch.Tensor, rows: Any) -> tuple[torch.Tensor, float]:
        theta = torch.tanh(u) @ self.codes.to(u).T * self.product
        own = labels if labels.ndim == 2 else F.one_hot(labels, len(self.codes)).bool()
        nll, active = triplet_nll(theta, own, ~own, self.alpha)
        return nll + self.lambda_bar * quantisation_error(u).mean(), active


class _RememberingLoss(DTSHLoss):
    """A likelihood of outputs that are remembered in a `bank` (n, n_bits), which starts with `unseen`."""

    needs_labels, needs_rows = False, True
    bank: torch.Tensor
    draws: torch.Tensor

    def __init__(self, n_bits: int, n: int, unseen: float, alpha: float | None, lambda_: float, random_state: int):
        super().__init__(n_bits, alpha, lambda_)
        self.random_state = random_state
        self.register_buffer("bank", torch.full((n, n_bits), unseen))
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def remember(self, u: torch.Tensor, rows: np.ndarray) -> list[int]:
        """The outputs of a batch; returns the seed of what is drawn for it."""
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
        alpha: float | None = DTSH.alpha,
        lambda_: float = DTSH.lambda_,
        random_state: int = 0,
    ):
        """`labels` are those of the whole training set."""
        known = Labels.of(labels)
        super().__init__(n_bits, len(known), 0.0, alpha, lambda_, random_state)
        self.labels, self.batch_size = known, min(batch_size, len(known))

    def compute(self, u: torch.Tensor, labels: Any, rows: np.ndarray) -> tuple[torch.Tensor, float]:
        positives, negatives = draw_from_bank(self.labels, rows, self.remember(u, rows))
        # theta of each query with its positives and negatives, (b, groups, 50)
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
    class, with new positives drawn for each. Label sets, a case that the authors' code does not have: nine
    groups, as many as CIFAR-10 gives, of images that share a label with the query and images that share none.
    Images of the batch are never drawn; draws are without replacement where there are 50 to draw from. Where there is
    nothing to draw, the query itself is both positive and negative, so the gradient is zero.
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
    """Likelihood of given triplets of rows, all three of which are rarely in one batch.

    Every triplet with an image in the batch counts. Images outside the batch are represented by their remembered
    outputs, which have no gradient. Triplets with an image that has not been seen yet are left out.
    """

    MOST = 20_000  # triplets per step; of more, that many are drawn

    def __init__(
        self,
        n_bits: int,
        triplets: np.ndarray,
        n: int,
        alpha: float | None = DTSH.alpha,
        lambda_: float = DTSH.lambda_,
        random_state: int = 0,
    ):
        """`triplets` (t, 3) are row numbers (query, positive, negative) in a training set of n images."""
        super().__init__(n_bits, n, torch.nan, alpha, lambda_, random_state)
        self.triplets = np.asarray(triplets)
        # the triplets that each image is part of, one image after the other
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
        members, places = np.unique(triplets, return_inverse=True)  # only these are copied
        inside = np.isin(rows, members)
        fresh = torch.from_numpy(np.searchsorted(members, rows[inside])).to(u.device)
        outputs = self.bank[members].to(u.dtype).index_put((fresh,), u[inside])
        roles = torch.from_numpy(places.reshape(-1, 3).T.copy()).to(u.device)
        query, positive, negative = (F.embedding(role, outputs) for role in roles)  # as in `ranking_hinge`
        gap = (query * (positive - negative)).sum(1) / 2 - self.alpha
        return F.softplus(-gap).mean() + quantisation, (gap < 0).float().mean().item()
