"""Semantic Hashing: contrastive divergence by its own formulas, and what pre-training, noise and fine-tuning do."""

import numpy as np
import pytest
import torch
from torch import nn

from hashlens.hashers.deep.semantic_hashing import BoltzmannMachine, Reconstruction, SemanticHashing


def machine_on(values, n_hidden, gaussian, seed=0):
    up = nn.Linear(values.shape[1], n_hidden).double()
    machine = BoltzmannMachine(up, values, gaussian, torch.Generator().manual_seed(seed)).double()
    nn.init.normal_(up.weight, std=0.3)
    nn.init.normal_(up.bias, std=0.3)
    nn.init.normal_(machine.visible_bias, std=0.3)
    return up, machine


@pytest.mark.parametrize("gaussian", [False, True])
def test_the_gradient_is_that_of_contrastive_divergence(gaussian):
    """dW = -(<h v> seen - <h v> made), with chances for h, and likewise for both biases."""
    torch.manual_seed(0)
    values = torch.rand(7, 5, dtype=torch.float64)
    up, machine = machine_on(values, 4, gaussian)
    rows = np.array([0, 2, 3, 6])
    seen = values[rows]
    state = machine.generator.get_state()
    made = machine.reconstruct(up(seen))
    machine.generator.set_state(state)
    loss = machine(up(seen), None, rows)
    loss.backward()
    h_seen, h_made = (up(v).sigmoid().detach() for v in (seen, made))
    np.testing.assert_allclose(up.weight.grad, -(h_seen.T @ seen - h_made.T @ made) / 4, atol=1e-12)
    np.testing.assert_allclose(up.bias.grad, -(h_seen - h_made).mean(0), atol=1e-12)
    np.testing.assert_allclose(machine.visible_bias.grad, -(seen - made).mean(0), atol=1e-12)
    assert gaussian or ((made > 0) & (made < 1)).all()


@pytest.mark.parametrize("gaussian", [False, True])
def test_free_energy_against_all_hidden_states(gaussian):
    """exp(-F(v)) is the sum over all states of the hidden units."""
    torch.manual_seed(1)
    v = torch.rand(3, 4, dtype=torch.float64)
    up, machine = machine_on(v, 3, gaussian)
    states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 3)
    for i in range(3):
        own = (v[i] - machine.visible_bias).square().sum() / 2 if gaussian else -v[i] @ machine.visible_bias
        energies = own - states @ up.bias - states @ (up.weight @ v[i])
        assert machine.free_energy(v)[i].item() == pytest.approx(-torch.logsumexp(-energies, 0).item(), abs=1e-12)


def test_pretraining_lowers_the_error_of_reconstruction(clusters):
    X, _ = clusters
    x = torch.from_numpy(((X - X.mean(0)) / X.std(0)).astype(np.float32))
    errors = []
    for epochs in (0, 50, 300):
        torch.manual_seed(0)
        up = nn.Linear(x.shape[1], 24)
        machine = BoltzmannMachine(up, x, True, torch.Generator().manual_seed(0))
        if epochs:
            SemanticHashing()._train(nn.Sequential(up), machine, x, None, epochs)
        errors.append((machine.reconstruct(up(x)) - x).square().mean().item())
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.8 * errors[0]


def test_noise_drives_units_from_the_middle(clusters):
    """With it, 80 % or more of the activities are outside of 0.2 to 0.8; without it, clearly fewer."""
    X, _ = clusters
    outside = {}
    for noise in (0.0, 4.0):
        hasher = SemanticHashing(8, hidden=(24,), noise=noise, pretraining_epochs=20, epochs=200).fit(X)
        units = 1 / (1 + np.exp(-hasher.project(X)))
        outside[noise] = ((units < 0.2) | (units > 0.8)).mean()
    assert outside[4.0] >= 0.8 and outside[0.0] < outside[4.0] - 0.05


def test_fine_tuning_lowers_the_error(clusters, monkeypatch):
    X, _ = clusters
    histories = []
    train = SemanticHashing._train

    def spy(self, network, loss, *rest):
        histories.append((type(loss), train(self, network, loss, *rest)))
        return histories[-1][1]

    monkeypatch.setattr(SemanticHashing, "_train", spy)
    SemanticHashing(8, hidden=(24, 16), pretraining_epochs=20, epochs=300).fit(X)
    assert [kind for kind, _ in histories] == [BoltzmannMachine] * 3 + [Reconstruction]
    assert [len(history) for _, history in histories] == [20, 20, 20, 300]
    errors = [row["loss"] for row in histories[-1][1]]
    assert errors[-1] < 0.8 * errors[0]


def test_the_noise_of_a_row_is_always_the_same():
    x, noise = torch.zeros(3, 2), torch.tensor([[9.0], [-9.0], [0.0]])
    loss = Reconstruction(nn.Linear(1, 2), x, noise)
    values = [loss(torch.zeros(1, 1), None, np.array([row])).item() for row in (0, 0, 1)]
    assert values[0] == values[1] != values[2]


def test_without_pretraining_it_is_another_network(clusters):
    X, _ = clusters
    some, none = (SemanticHashing(8, hidden=(24,), pretraining_epochs=n, epochs=3).fit(X) for n in (5, 0))
    assert not np.array_equal(some.project(X), none.project(X))
