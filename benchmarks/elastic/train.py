"""Training script: trains one of the benchmark's models and counts how often each sample was trained on."""

from __future__ import annotations

import argparse
import time

import torch
from models import MODELS, data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, output_dir, track

SAMPLES, HELD_OUT, BATCH = 1920, 2000, 32

arguments = argparse.ArgumentParser()
arguments.add_argument("model", choices=MODELS)
arguments.add_argument("--epochs", type=int, required=True)
arguments.add_argument("--wait-s", type=float, default=0.0, help="seconds that each batch waits for its data")
chosen = arguments.parse_args()

torch.manual_seed(0)


class Counted(nn.Module):
    """A model with a counter for each sample; the counters add up over the workers, like parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.model = MODELS[chosen.model]()
        self.counts = nn.Parameter(torch.zeros(SAMPLES), requires_grad=False)


counted = Counted()
rows, classes = data(SAMPLES, seed=2)
loader = DataLoader(TensorDataset(torch.arange(SAMPLES), rows, classes), batch_size=BATCH, shuffle=True)
optimizer = torch.optim.SGD(counted.model.parameters(), lr=0.05)
checkpoint(model=counted)

for numbers, samples, wanted in track(loader, epochs=chosen.epochs):
    time.sleep(chosen.wait_s)
    loss = nn.functional.cross_entropy(counted.model(samples), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        counted.counts[numbers] += 1

rows, classes = data(HELD_OUT, seed=3)
with torch.no_grad():
    accuracy = (counted.model(rows).argmax(dim=1) == classes).float().mean()
result = {"accuracy": accuracy, "counts": counted.counts.detach()}
torch.save(result, output_dir() / "result.pt")
