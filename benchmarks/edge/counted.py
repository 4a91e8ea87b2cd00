"""Training script: counts how often each sample was trained on, and uses CPU time for each batch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, output_dir, track

samples, epochs, rounds = map(int, sys.argv[1:])


class Counts(nn.Module):
    """A model with a counter for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(samples, dtype=torch.float64))


model = Counts()
matrix = torch.randn(256, 256)
checkpoint(model=model)
for (indices,) in track(DataLoader(TensorDataset(torch.arange(samples)), 4, shuffle=True), epochs=epochs):
    for _ in range(rounds):
        matrix = (matrix @ matrix).tanh()
    with torch.no_grad():
        model.counts[indices] += 1
torch.save(model.state_dict(), output_dir() / "model.pt")
