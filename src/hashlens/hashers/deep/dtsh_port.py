"""DTSH as in its well-known PyTorch port: settings for each of the port's differences from the released code.

The port that most later comparisons use differs from the authors' released code in six ways. Four are settings of DTSH
(`port_settings`); the other two are here. This is not a method and has no row in METHODS; it exists for an ablation:
how much of the difference between published numbers is due to the port?
"""

from dataclasses import replace
from typing import Any

from hashlens.hashers.deep.dtsh import DTSH
from hashlens.hashers.deep.triplet_losses import TRIPLETS_PER_QUERY
from hashlens.hashers.losses import Loss
from hashlens.settings import setting

DIFFERENCES = {
    1: "theta is u · u, not half of it",
    2: "margin 5, not half the bits",
    3: "quantisation weighs 1 against the mean over bits, not 100 against the sum over 22,500 triplets",
    4: "all triplets inside the batch, gradient through all three; not drawn from a memory, gradient through the query",
    5: "an image is its own positive (only with triplets inside the batch, so together with 4)",
    6: "RMSprop at 1e-5, half as many epochs again, not SGD at 5e-4 in steps",
}
RATES: dict[str, Any] = {"lr": 1e-5, "head_lr": 1e-5, "weight_decay": 1e-5, "step_factor": 1.0}


class DTSHPort(DTSH):
    """DTSH with the two differences of its port that are not settings of DTSH.

    X. Wang, Y. Shi, K. Kitani, "Deep Supervised Hashing with Triplet Labels", ACCV 2016, as in the port.

    Minimises the same as DTSH, with theta_ij = product u_i . u_j.

    Differences from the port: T is not clamped to [-100, 50] in log(1 + exp(T)); outside that range the port has no
    gradient.
    """

    name = "dtsh-port"

    product: float = setting(0.5, "factor of u . u in theta; paper: 1/2, port: 1", above=0)
    own_positive: bool = setting(False, "an image counts as its own positive, as in the port; only in-batch")
    sampling: str = setting("published", "as in DTSH", choices=("in-batch", "published"))

    def _loss(self, labels: Any) -> Loss:
        loss: Any = super()._loss(labels)
        loss.product, loss.own_positive = self.product, self.own_positive
        return loss


def port_settings(differences: tuple[int, ...], n_bits: int, n_train: int, epochs: int = 100) -> dict[str, Any]:
    """Settings of DTSHPort: the authors' released code plus the given DIFFERENCES of the port.

    The released code trains for 100 `epochs`; with fewer, the learning rate steps sooner in proportion. The port always
    trains 1.5 times as long.
    """
    theirs = DTSH.published(n_bits, n_train, training={"epochs": epochs, "step_epochs": max(1, epochs // 5)})
    settings: dict[str, Any] = {"sampling": "published", "training": theirs.training}
    changes: dict[int, dict[str, Any]] = {
        1: {"product": 1.0},
        2: {"alpha": 5.0},
        # the loss divides lambda by 22,500 and sums over bits, the port averages
        3: {"lambda_": TRIPLETS_PER_QUERY / n_bits},
        4: {"sampling": "in-batch"},
        5: {"sampling": "in-batch", "own_positive": True},
        6: {"training": replace(theirs.training, epochs=round(1.5 * epochs), optimizer="rmsprop", **RATES)},
    }
    for number in differences:
        settings |= changes[number]
    return settings
