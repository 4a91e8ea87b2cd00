"""Training script of the benchmark: ``train.py resnet50|table --steps N --epochs N [--bare]``, on generated data.

The GPU is the bottleneck of ``resnet50``; the loader's workers on the CPU are the bottleneck of ``table``. The script
prints the duration of each epoch but the first, in which the workers start. With ``--bare`` it uses nothing of
Paceline. Without a GPU, it trains on the CPU, for tests.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise

import torch
from models import resnet50
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from paceline.train import checkpoint, output_dir, report, track

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DISTINCT = 1024  # images or rows that the samples repeat


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """So many samples as ``count``, which repeat the same tensors."""

    def __init__(self, count: int, inputs: Tensor, targets: Tensor) -> None:
        self.count, self.inputs, self.targets = count, inputs, targets

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index % DISTINCT], self.targets[index % DISTINCT]


arguments = argparse.ArgumentParser()
arguments.add_argument("model", choices=["resnet50", "table"])
arguments.add_argument("--steps", type=int, required=True, help="a multiple of the epochs")
arguments.add_argument("--epochs", type=int, required=True)
arguments.add_argument("--bare", action="store_true")
chosen = arguments.parse_args()

torch.manual_seed(0)
if chosen.model == "resnet50":
    batch, inputs = 64, torch.randint(256, (DISTINCT, 3, 224, 224), dtype=torch.uint8)
    targets, loss_of = torch.randint(10, (DISTINCT,)), nn.functional.cross_entropy
    model = resnet50(10).to(memory_format=torch.channels_last)
else:
    batch, inputs = 512, torch.randint(256, (DISTINCT, 64), dtype=torch.uint8)
    targets, loss_of = torch.rand(DISTINCT, 1), nn.functional.mse_loss
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
samples = Samples(chosen.steps // chosen.epochs * batch, inputs, targets)
pinned = DEVICE == "cuda"
loader = DataLoader(samples, batch, shuffle=True, num_workers=4, pin_memory=pinned, persistent_workers=True)
model = model.to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train(images: Tensor, wanted: Tensor) -> Tensor:
    """Train one batch; return its loss, still on the GPU."""
    optimizer.zero_grad()
    with torch.autocast(DEVICE, torch.bfloat16):
        outputs = model(images.to(DEVICE, non_blocking=True).float() / 255)
    loss: Tensor = loss_of(outputs.float(), wanted.to(DEVICE, non_blocking=True))
    loss.backward()
    optimizer.step()
    return loss


def now_s() -> float:
    """Return the time at which the GPU has computed everything so far."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.monotonic()


ends_s = [now_s()]
if chosen.bare:
    for _ in range(chosen.epochs):
        for images, wanted in loader:
            train(images, wanted)
        ends_s.append(now_s())
else:
    checkpoint(model=model, optimizer=optimizer, every_s=30)
    for images, wanted in (loop := track(loader, epochs=chosen.epochs)):
        report(loss=train(images, wanted))
        if loop.epoch_end:
            ends_s.append(now_s())
    torch.save(model.state_dict(), output_dir() / "model.pt")
print("epoch_s", *(round(end_s - begin_s, 4) for begin_s, end_s in pairwise(ends_s[1:])))
