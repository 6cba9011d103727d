"""DLBHC, deep learning of binary hash codes: outputs of a batch in, cross-entropy of a classifier above them out."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hashlens.data.labels import Labels
from hashlens.hashers.deep.base import DeepHasher


class DLBHC(DeepHasher):
    """Deep learning of binary hash codes: a sigmoid layer of n_bits units below the classes of a classifier.

    K. Lin, H.-F. Yang, J.-H. Hsiao, C.-S. Chen, "Deep Learning of Binary Hash Codes for Fast Image Retrieval", CVPR
    workshops 2015.

    Minimises the cross-entropy of softmax(W sigmoid(u) + c) and the class. A unit above 0.5, that is u > 0, is a 1.

    Parameters
    ----------
    head, backbone, weights, image_size, frozen_blocks, training : as in DTSH; the paper's head is "linear".

    Differences from the paper: the backbone is EfficientNet-Lite, not AlexNet, and its leading blocks stay frozen;
    AdamW with a one-cycle schedule; no dropout; the classifier learns at the rate of the hash layer, which starts as in
    our other methods. With several labels a picture each class is a yes or no of its own (the mean of binary
    cross-entropies), which the paper does not treat. The paper sorts near codes again by features; here codes are all.
    """

    name = "dlbhc"

    def _loss(self, labels: Labels) -> nn.Module:
        return LatentClassifier(self.n_bits, labels.n_classes, self.random_state)


class LatentClassifier(nn.Module):
    """Cross-entropy of a linear classifier on sigmoid(u), which is learnt with the network and is no part of it."""

    def __init__(self, n_bits: int, n_classes: int, random_state: int):
        super().__init__()
        rng = np.random.default_rng([random_state, 1])
        self.weight = nn.Parameter(torch.tensor(rng.normal(0, 0.01, (n_classes, n_bits)), dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(n_classes))

    def forward(self, u: torch.Tensor, labels: Labels, rows: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
        scores = F.linear(torch.sigmoid(u), self.weight.to(u), self.bias.to(u))
        value, wrong = classification_loss(scores, labels)
        return value, {"active": wrong}


def classification_loss(scores: torch.Tensor, labels: Labels) -> tuple[torch.Tensor, float]:
    """Cross-entropy of scores (b, n_classes) and the part of decisions that are wrong, both means.

    One class a picture: softmax, and a decision a picture. Sets of labels: a yes or no for each picture and label.
    """
    if labels.multi:
        truth = torch.from_numpy(labels.values).to(scores.device)
        value = F.binary_cross_entropy_with_logits(scores, truth.to(scores))
        return value, ((scores > 0) != truth).float().mean().item()
    classes = torch.from_numpy(labels.values).to(scores.device)
    return F.cross_entropy(scores, classes), (scores.argmax(1) != classes).float().mean().item()
