"""DTSH's loss in a plain torch loop

`hashlens.losses.DTSHLoss` is an ordinary torch module: outputs (n, bits) and labels in, a number with a gradient out.
Everything else here is yours.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from hashlens import Codes, evaluate_codes
from hashlens.losses import DTSHLoss

torch.manual_seed(0)
X, y = load_digits(return_X_y=True)
X, y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y)
train, test = slice(0, 1400), slice(1400, None)

network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 24))
loss_of = DTSHLoss(24)  # margin: half the bits
optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)

for epoch in range(15):
    for rows in torch.randperm(1400).split(100):
        optimizer.zero_grad()
        loss = loss_of(network(X[rows]), y[rows])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1:2}: loss {loss.item():.3f}")

with torch.no_grad():
    codes = {name: Codes.from_relaxed(network(X[part]).numpy()) for name, part in (("train", train), ("test", test))}
scores = evaluate_codes(codes["test"], codes["train"], y[test].numpy(), y[train].numpy())
print(f"MAP {scores['map']:.3f}, random {scores['map_random']:.3f}")
