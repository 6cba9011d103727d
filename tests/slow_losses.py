"""Plain loops that several tests compare fast losses with."""

import numpy as np
import torch

BATCHES = {
    "balanced": [0, 1, 2, 0, 1, 2],
    "unbalanced": [0, 0, 0, 0, 0, 1, 1, 2],
    "a class of one": [0, 0, 1, 1, 2],
    "classes far apart": [7, 7, 3, 3, 3],
    "sets": [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1], [0, 0, 0], [1, 1, 0]],
    "sets, nothing shared by two": [[1, 0], [0, 1], [1, 1], [1, 0]],
}
WITHOUT_TRIPLETS = [[3, 3, 3], [0, 1, 2], [5], [[1, 0], [1, 0]], [[0, 0], [0, 0]]]


def n_shared(a, b):
    """Labels that two items have in common."""
    return int(a == b) if np.ndim(a) == 0 else sum(bool(x and y) for x, y in zip(a, b, strict=True))


def triplets_of(labels):
    """{query: [(positive, negative), ...]} of a batch; queries without triplets are left out."""
    found = {}
    for q in range(len(labels)):
        for p in range(len(labels)):
            for n in range(len(labels)):
                if len({q, p, n}) == 3 and n_shared(labels[q], labels[p]) and not n_shared(labels[q], labels[n]):
                    found.setdefault(q, []).append((p, n))
    return found


def value_and_gradient(loss, u, labels, rows=None):
    u = torch.tensor(u, requires_grad=True)
    value = loss(u, labels, np.arange(len(u)) if rows is None else rows)
    value.backward()
    return value.item(), u.grad.numpy(), loss.figures


def differences(function, x, step=1e-6):
    """The gradient of a function of an array, by central differences."""
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        above, below = x.copy(), x.copy()
        above[place] += step
        below[place] -= step
        gradient[place] = (function(above) - function(below)) / (2 * step)
    return gradient
