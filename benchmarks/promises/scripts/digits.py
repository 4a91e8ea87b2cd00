"""Training script: a small convolutional network on noise, with a chosen number of batches."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, output_dir, report, track

arguments = argparse.ArgumentParser()
arguments.add_argument("--batches", type=int, default=200)
arguments.add_argument(
    "--batch-size", type=int, default=32, help="size of a batch; from 64 on, a second core is useful"
)
arguments.add_argument("--checkpoint-every-s", type=float, default=None)
chosen = arguments.parse_args()

torch.manual_seed(0)
data = TensorDataset(torch.randn(3200, 1, 28, 28), torch.randint(0, 10, (3200,)))
loader = DataLoader(data, batch_size=chosen.batch_size, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(4),
    nn.Flatten(),
    nn.Linear(3136, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
checkpoint(model=model, optimizer=optimizer, every_s=chosen.checkpoint_every_s)

for inputs, labels in track(loader, epochs=chosen.batches // len(loader)):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(loss=loss)

torch.save(model.state_dict(), output_dir() / "model.pt")
print("model saved")
