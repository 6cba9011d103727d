"""ClassifierCode, the sceptical baseline: class scores of a picture in, a fixed code of its class out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hashlens.data.labels import Labels
from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.deep.dlbhc import classification_loss

CANDIDATES = 256  # random codes among which that of a class is chosen


class ClassifierCode(DeepHasher):
    """A plain classifier; the code of a picture is that of its predicted class.

    After A. Sablayrolles, M. Douze, N. Usunier, H. Jegou, "How Should We Evaluate Supervised Hashing?", ICASSP 2017,
    who show that under the usual protocol, where the classes of the queries are those that were learnt, writing down
    a classifier's answer scores higher than the supervised hashing of its time. It is here for that reason: a method
    that does not beat it on the same network has shown no more than that the network can classify. It is no hashing to
    use: pictures of classes never seen in training get codes of other classes.

    Minimises the cross-entropy of softmax(z) and the class for the class scores z of the network. Classes get codes of
    n_bits before training: one after the other, the candidate among 256 random codes that is farthest from the nearest
    code given out so far. Sets of labels: binary cross-entropies, and the code is the sign of the sum over labels of
    (sigmoid(z_c) - p_c) r_c, with p_c the part of training pictures that have label c and r_c normal random numbers, so
    that codes differ as the angle between the chances of labels does.

    Parameters
    ----------
    head, backbone, weights, image_size, frozen_blocks, training : as in DTSH.

    Differences from the paper: it writes the number of the class in as few bits as that takes, and treats one class a
    picture only. For sets of labels, chances less how common a label is are used and not the scores z themselves:
    most labels are absent from most pictures, and their scores, all far below 0, would give all pictures one code.
    In the figures of an epoch, `quantisation` and `dead_bits` are those of class scores.
    """

    name = "classifier"

    @property
    def _n_outputs(self) -> int:
        return len(self.class_codes_)

    def _loss(self, labels: Labels) -> nn.Module:
        return CrossEntropy()

    def _fit(self, X: Any, labels: Labels | None, **how: Any) -> None:
        assert labels is not None
        rng = np.random.default_rng([self.random_state, 1])
        shape = labels.n_classes, self.n_bits
        self.class_codes_ = rng.standard_normal(shape, np.float32) if labels.multi else distant_codes(*shape, rng)
        self.shares_ = (labels.counts() / len(labels)).astype(np.float32)
        self.multi_ = labels.multi
        super()._fit(X, labels, **how)

    def _project(self, X: Any, **how: Any) -> np.ndarray:
        scores = super()._project(X, **how)
        if not self.multi_:
            return self.class_codes_[scores.argmax(1)]
        chances = 1 / (1 + np.exp(-scores.clip(-60, 60)))
        return (chances - self.shares_) @ self.class_codes_

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        learnt, arrays = super()._state()
        arrays |= {"class_codes": self.class_codes_, "shares": self.shares_}
        return learnt | {"multi": self.multi_}, arrays

    def _restore(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        arrays = dict(arrays)
        self.class_codes_, self.shares_ = arrays.pop("class_codes"), arrays.pop("shares")
        self.multi_ = config["multi"]
        super()._restore(config, arrays)


class CrossEntropy(nn.Module):
    """Mean cross-entropy of class scores and labels."""

    def forward(self, u: torch.Tensor, labels: Labels, rows: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
        value, wrong = classification_loss(u, labels)
        return value, {"active": wrong}


def distant_codes(n: int, n_bits: int, rng: np.random.Generator) -> np.ndarray:
    """(n, n_bits) of -1 and 1, each far from those before it; equal ones only where chance offers no other."""
    codes = np.empty((n, n_bits), np.float32)
    for i in range(n):
        candidates = rng.choice(np.array([-1, 1], np.float32), (CANDIDATES, n_bits))
        agreement = (candidates @ codes[:i].T).max(1, initial=-n_bits)  # with the nearest code so far
        codes[i] = candidates[agreement.argmin()]
    return codes
