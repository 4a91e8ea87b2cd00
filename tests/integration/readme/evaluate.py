"""The README's evaluation script: the area under the ROC curve on the hold-out rows."""

from __future__ import annotations

import csv

import torch

from paceline.train import input_dir, report

(path,) = (input_dir() / "data" / "holdout").glob("*.csv")
with path.open() as file:
    table = torch.tensor([[float(one) for one in row] for row in list(csv.reader(file))[1:]])
weights = torch.load(input_dir() / "model" / "model.pt")
model = torch.nn.Linear(table.shape[1] - 1, 1)
model.load_state_dict(weights)
with torch.no_grad():
    scores = model(table[:, :-1]).squeeze(1)
late, early = scores[table[:, -1] == 1], scores[table[:, -1] == 0]
report(auc=(late[:, None] > early[None, :]).float().mean().item())
