"""Heads: their shapes, their starting weights, what each bit sees, and that each can be trained."""

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession

from hashlens import evaluate_codes
from hashlens.features.networks.inference import fold
from hashlens.features.networks.onnx_graph import to_onnx
from hashlens.hashers.deep.dtsh import DTSH
from hashlens.hashers.deep.heads import HEADS, build_head
from hashlens.hashers.deep.training import Training


@pytest.mark.parametrize("kind", HEADS)
def test_shape_and_start(kind):
    torch.manual_seed(0)
    head = build_head(kind, 200, 12)
    assert head(torch.randn(5, 200)).shape == (5, 12)
    weights = torch.cat([p.detach().flatten() for p in head.parameters()])
    assert weights.std().item() == pytest.approx(0.01, rel=0.05) and abs(weights.mean().item()) < 0.001


def test_a_bit_of_divide_and_encode_sees_values_of_its_own():
    head = build_head("divide-and-encode", 20, 4)
    x = torch.randn(1, 20)
    values = head[1](head[0](x)).detach().requires_grad_()
    for bit in range(4):
        (slope,) = torch.autograd.grad(head[2](values)[0, bit], values)
        seen = slope[0].nonzero().flatten().tolist()
        assert seen and set(seen) <= set(range(50 * bit, 50 * bit + 50))
    expected = (values.view(4, 50) * head[2].weight).sum(1) + head[2].bias
    torch.testing.assert_close(head[2](values)[0], expected)


@pytest.mark.parametrize("kind", HEADS)
def test_each_head_learns_and_is_saved(kind, clusters, tmp_path):
    X, y = clusters
    hasher = DTSH(12, head=kind, training=Training(epochs=15, batch_size=50, head_lr=0.05)).fit(X, y)
    codes = hasher.encode(X)
    assert evaluate_codes(codes[:50], codes[50:], y[:50], y[50:])["map"] > 0.8
    hasher.save(tmp_path)
    assert DTSH.load(tmp_path).encode(X).equals(codes)


@pytest.mark.parametrize("kind", HEADS)
def test_each_head_runs_outside_torch(kind, rng):
    torch.manual_seed(0)
    head = torch.nn.Sequential(torch.nn.Flatten(), build_head(kind, 20, 6))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    x = rng.normal(size=(7, 20)).astype("float32")
    session = InferenceSession(to_onnx(fold(head), x[:1]).SerializeToString())
    (found,) = session.run(None, {"input": x})
    expected = head(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
