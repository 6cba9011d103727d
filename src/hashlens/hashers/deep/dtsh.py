"""DTSH, deep supervised hashing with triplet labels; its losses are in triplet_losses.py."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn

from hashlens.data.labels import Labels
from hashlens.data.triplets import clean_triplets
from hashlens.errors import UsageError
from hashlens.features.networks import Network
from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.deep.class_codes import class_codes, memberships, ridge_regression
from hashlens.hashers.deep.heads import FromLongCode, Standardised, build_head
from hashlens.hashers.deep.inputs import outputs_of
from hashlens.hashers.deep.training import released
from hashlens.hashers.deep.triplet_losses import (
    LAMBDA,
    TRIPLETS_PER_QUERY,
    DTSHBankLoss,
    DTSHClassLoss,
    DTSHLoss,
    DTSHTripletLoss,
)
from hashlens.hashers.losses import Loss
from hashlens.hashers.second import learn_second
from hashlens.progress import Progress, counted
from hashlens.schema import conform, whole
from hashlens.settings import setting

# in-batch triplets suffice with at least this many images per class, on average: in a batch, and in all
PAIRS, MANY = 4, 200
# shortest long code when a network is trained, the same on fixed features, and the longest
LONG, LONG_FIXED, MOST_LONG = 256, 512, 4096
FEW = 50  # with fewer images per class, mixing images helps
# with class codes: train for longer, and keep the batch-norm statistics of a pretrained network
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
    sampling="class-codes", made for many classes, where a batch has few pairs of one class, the positive and the
    negative of a triplet are class codes. These are computed first, from the geometry of the classes, and stay fixed;
    theta is tanh(u) . code / 2, and the hash layer starts as a regression (see class_codes.py). If every image has one
    label, a longer code is learned, and the bits are derived from it (see `FromLongCode`).
    """

    alpha: float | None = setting(None, "margin in bits; none: the paper's n_bits / 2", low=0, search=(2.0, 48.0))
    lambda_: float = setting(
        LAMBDA,
        "weight of the quantisation term, against a sum over 22,500 triplets; paper: 100",
        low=0,
        search=(1.0, 1000.0),
    )
    sampling: str = setting(
        "auto",
        "in-batch: all triplets inside the batch, gradient through all three; class-codes: every image with the code of"
        " its class and the codes of all other classes; auto: in-batch with few classes, class-codes with many;"
        " published: as in the authors' code, drawn from remembered outputs, gradient through the query only",
        choices=("auto", "in-batch", "class-codes", "published"),
        search=["in-batch", "class-codes"],
    )
    long_bits: int | None = setting(
        None,
        "with class codes and one label per image: length of a longer code that is learned, from which the n_bits are"
        " derived, at least n_bits; 0: learn the n_bits directly; none: 256, or 512 on fixed features",
        low=0,
        high=MOST_LONG,
    )
    apart: int | None = setting(
        None, "minimum distance in bits between the codes of two classes; none: n_bits / 6", low=1
    )
    spare_bits: int = setting(
        0,
        "with triplets formed inside the batch: number of last bits that are ITQ of the features instead of learned,"
        " for unseen classes",
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
        if self.apart is not None and self.apart > self.n_bits:
            raise UsageError(f"apart must be <= the {self.n_bits} bits of a code, got {self.apart}")
        if isinstance(labels, Labels):
            labels = labels.present()  # a class without images would get a code too
        self.sampling_ = self._sampling_for(labels)
        self.n_classes_ = self.long_bits_ = 0
        if self.long_bits != 0 and self.sampling_ == "class-codes" and not labels.multi and self.head == "linear":
            usual = LONG_FIXED if self._choose_backbone(X) == "none" else LONG
            self.n_classes_, self.long_bits_ = labels.n_classes, max(self.n_bits, self.long_bits or usual)
        if isinstance(labels, Labels):
            self._tell(labels.n_classes, Progress.of(how.get("progress", False)))
        self.spare_bits_ = self._spare_for(labels)
        super()._fit(X, labels, **how)

    def _tell(self, n_classes: int, progress: Progress) -> None:
        if self.sampling == "auto":
            formed = "inside each batch" if self.sampling_ == "in-batch" else "with class codes"
            progress.say(f"{counted(n_classes, 'class')}: triplets are formed {formed}")
        if n_classes > 2**self.n_bits:
            progress.say(
                f"note: there are only {2**self.n_bits:,} codes of {counted(self.n_bits, 'bit')} for {n_classes:,}"
                f" classes, so some classes share a code; use at least {(n_classes - 1).bit_length()} bits"
            )

    def _spare_for(self, labels: Any) -> int:
        if self.spare_bits and (self.sampling_ != "in-batch" or self.head != "linear"):
            raise UsageError("spare_bits needs sampling='in-batch' and a linear hash layer; set it to 0")
        if self.spare_bits >= self.n_bits:
            raise UsageError(f"spare_bits is {self.spare_bits}, which leaves none of the {self.n_bits} bits to learn")
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
            n_bits = getattr(self, "long_bits_", 0) or self.n_bits  # `_loss` may be called before fitting
            alpha = None if self.alpha is None else self.alpha * n_bits / self.n_bits  # scaled to the longer code
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
        """All bits before `fit` chooses, and in a loaded model, whose layer already includes the spare bits."""
        return self.n_bits - getattr(self, "spare_bits_", 0)

    def _head(self) -> nn.Module:
        if self.n_classes_:
            return FromLongCode(self.n_features_in_, self.long_bits_, self.n_classes_, self.n_bits)
        return build_head(self.head, self.n_features_in_, self._learned_bits)

    def _keep(self, loss: Any, features: Callable[[], np.ndarray]) -> None:
        """Add the spare bits to the hash layer, scaled to outputs of the same size as the learned ones."""
        if not self.spare_bits_:
            return
        X, learned = features(), self.network_[-1].cpu()
        assert isinstance(learned, nn.Linear)  # ensured by `_spare_for`
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
        layer = regression(
            (memberships(labels) @ codes).clip(-1, 1)
        )  # with several labels, the majority of their codes
        if isinstance(network[-1], FromLongCode):
            network[-1].start(layer, codes, codes_of(self.n_bits))
        elif isinstance(network[-1], nn.Linear):
            network[-1] = self.network_[-1] = layer
