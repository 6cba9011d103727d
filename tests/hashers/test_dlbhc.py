"""DLBHC: it classifies, and its codes are the units of its sigmoid layer."""

import numpy as np
import pytest
import torch

from hashlens import evaluate_codes
from hashlens.hashers.deep.dlbhc import DLBHC, DLBHCLoss
from hashlens.hashers.deep.training import Training

FAST = Training(epochs=20, batch_size=40, head_lr=0.05)


@pytest.mark.parametrize("sets", [False, True])
def test_it_learns_to_classify(clusters, sets, tmp_path):
    X, y = clusters
    labels = np.eye(4, dtype=int)[y] if sets else y
    hasher = DLBHC(16, training=FAST).fit(X[50:], labels[50:])
    wrong = [row["active"] for row in hasher.history_]
    assert wrong[-1] < 0.1 and wrong[-1] < wrong[0] / 2
    codes = hasher.encode(X)
    assert evaluate_codes(codes[:50], codes[50:], y[:50], y[50:])["map"] > 0.8
    units = 1 / (1 + np.exp(-hasher.project(X)))
    assert ((units > 0) & (units < 1)).all() and np.array_equal(codes.signs() == 1, units > 0.5)
    assert set(hasher.network_.state_dict()) == {"0.weight", "0.bias"}  # the classifier is not part of the model


def test_the_classifier_is_trained_with_the_network(clusters, monkeypatch):
    made = []
    build = DLBHC._loss
    monkeypatch.setattr(DLBHC, "_loss", lambda self, labels: made.append(build(self, labels)) or made[-1])
    DLBHC(8, training=FAST).fit(*clusters)
    start = DLBHCLoss(8, 4, 0)
    assert start.weight.std().item() == pytest.approx(0.01, rel=0.5) and not start.bias.any()
    assert (made[0].weight - start.weight).abs().max() > 0.1 and (made[0].bias - start.bias).abs().max() > 0.001


def test_the_classifier_starts_from_the_seed():
    first, again, other = (DLBHCLoss(8, 4, seed).weight for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
