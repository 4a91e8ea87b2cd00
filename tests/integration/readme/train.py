"""The README's training script: a small model on the rows of ``data/``."""

from __future__ import annotations

import csv
import os

import torch

from paceline.train import checkpoint, input_dir, output_dir, report, track

rows = []
for path in sorted((input_dir() / "data").glob("*.csv")):
    with path.open() as file:
        rows += [[float(one) for one in row] for row in list(csv.reader(file))[1:]]
table = torch.tensor(rows)
features, labels = table[:, :-1], table[:, -1:]
model = torch.nn.Linear(features.shape[1], 1)
optimizer = torch.optim.Adam(model.parameters(), 0.05)
checkpoint(model=model, optimizer=optimizer)
print("the token is", os.environ.get("TOKEN", "not set"))
for _ in track(range(40), epochs=20):
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(features), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(loss=loss.item())
torch.save(model.state_dict(), output_dir() / "model.pt")
