"""DLBHC, deep learning of binary hash codes: outputs of a batch in, cross-entropy of a classifier above them out."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.losses import Loss, classification_loss


class DLBHC(DeepHasher):
    """Deep learning of binary hash codes: a sigmoid layer of n_bits units below the classes of a classifier.

    K. Lin, H.-F. Yang, J.-H. Hsiao, C.-S. Chen, "Deep Learning of Binary Hash Codes for Fast Image Retrieval", CVPR
    workshops 2015.

    Minimises the cross-entropy of softmax(W sigmoid(u) + c) and the class. A unit above 0.5, that is u > 0, is a 1.

    Differences from the paper: the backbone is EfficientNet-Lite, not AlexNet, and its leading blocks stay frozen;
    AdamW with a one-cycle schedule; no dropout; the classifier learns at the rate of the hash layer, which starts as in
    our other methods. With several labels per image each class is a separate yes or no (the mean of binary
    cross-entropies), which the paper does not treat. The paper reranks near codes by features; here only codes count.
    """

    needs_pairs = False


class DLBHCLoss(Loss):
    """Cross-entropy of a linear classifier on sigmoid(u), which is learned with the network but not part of it."""

    def __init__(self, n_bits: int, n_classes: int, random_state: int = 0):
        super().__init__(n_bits)
        rng = np.random.default_rng([random_state, 1])
        self.weight = nn.Parameter(torch.tensor(rng.normal(0, 0.01, (n_classes, n_bits)), dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(n_classes))

    def compute(self, u: torch.Tensor, labels: torch.Tensor, rows: Any) -> tuple[torch.Tensor, float]:
        return classification_loss(F.linear(torch.sigmoid(u), self.weight.to(u), self.bias.to(u)), labels)
