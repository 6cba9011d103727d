"""ClassifierCode, the sceptic's baseline: class scores of an image in, the fixed code of its class out."""

from typing import Any

import numpy as np
import torch

from hashlens.data.labels import Labels
from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.losses import Loss, classification_loss

CANDIDATES = 256  # random codes from which the code of a class is chosen


class ClassifierCode(DeepHasher):
    """A plain classifier; the code of an image is the code of its predicted class.

    After A. Sablayrolles, M. Douze, N. Usunier, H. Jegou, "How Should We Evaluate Supervised Hashing?", ICASSP 2017,
    who show that under the usual protocol, with queries of classes seen in training, encoding a classifier's answer
    scores higher than the supervised hashing methods of its time. It serves as a baseline: a method that does not beat
    it on the same network has only shown that the network can classify. Do not use it for retrieval: images of unseen
    classes get the codes of other classes.

    Minimises the cross-entropy of softmax(z) and the class for the class scores z of the network. Classes get codes of
    n_bits before training, one after the other: of 256 random candidates, the one farthest from its nearest code so
    far. Label sets: binary cross-entropies, and the code is the sign of the sum over labels of (sigmoid(z_c) - p_c)
    r_c, with p_c the fraction of training images that have label c and r_c normal random numbers, so that the distance
    of codes follows the angle between label probabilities.

    Differences from the paper: it writes the class number in as few bits as needed, and treats one class per image
    only. For label sets, probabilities minus the frequency of the label are used, not the scores z themselves: most
    labels are absent from most images, and their scores, all far below 0, would give all images one code. In the
    training history, `quantisation` and `dead_bits` refer to class scores.
    """

    needs_pairs = False
    name = "classifier"
    beside_network = ("class_codes", "shares")

    @property
    def _n_outputs(self) -> int:
        return len(self.class_codes_)

    def _loss(self, labels: Labels) -> Loss:
        return ClassifierCodeLoss(labels.n_classes)

    def _fit(self, X: Any, labels: Labels | None, **how: Any) -> None:
        assert labels is not None
        rng = np.random.default_rng([self.random_state, 1])
        shape = labels.n_classes, self.n_bits
        self.class_codes_ = rng.standard_normal(shape, np.float32) if labels.multi else distant_codes(*shape, rng)
        self.shares_ = (labels.counts() / len(labels)).astype(np.float32)
        self.multi_ = labels.multi
        super()._fit(X, labels, **how)

    def _project(self, X: np.ndarray) -> np.ndarray:
        scores = super()._project(X)
        if not self.multi_:
            return self.class_codes_[scores.argmax(1)]
        probabilities = 1 / (1 + np.exp(-scores.clip(-60, 60)))
        return (probabilities - self.shares_) @ self.class_codes_

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        learned, arrays = super()._state()
        return learned | {"multi": self.multi_}, arrays

    def _restore(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.multi_ = config["multi"]
        super()._restore(config, arrays)


class ClassifierCodeLoss(Loss):
    """Mean cross-entropy of class scores (n, n_classes) and labels."""

    mixes = True

    def compute(self, u: torch.Tensor, labels: torch.Tensor, rows: Any) -> tuple[torch.Tensor, float]:
        return classification_loss(u, labels)


def distant_codes(n: int, n_bits: int, rng: np.random.Generator) -> np.ndarray:
    """(n, n_bits) of -1 and 1, each far from the ones before it; equal only if no candidate differs."""
    codes = np.empty((n, n_bits), np.float32)
    for i in range(n):
        candidates = rng.choice(np.array([-1, 1], np.float32), (CANDIDATES, n_bits))
        agreement = (candidates @ codes[:i].T).max(1, initial=-n_bits)  # with the nearest code so far
        codes[i] = candidates[agreement.argmin()]
    return codes
