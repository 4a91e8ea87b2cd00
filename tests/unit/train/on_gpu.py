"""A training script for a GPU, started by ``test_gpu``: ``python on_gpu.py KILLED_AT``.

A small network with batch normalisation and dropout, in half precision with a gradient scaler. The process kills itself
in the batch KILLED_AT, unless KILLED_AT is 0 or this batch is already done. At the end it writes the state of
all objects.
"""

import os
import signal
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, data_parallel, device, output_dir, report, track

killed_at = int(sys.argv[1])
torch.use_deterministic_algorithms(True)
torch.manual_seed(1)
images = torch.randn(96, 1, 16, 16, generator=torch.Generator().manual_seed(2))
dataset = TensorDataset(images, images.mean((1, 2, 3)))
loader = DataLoader(dataset, 16, shuffle=True, num_workers=2, pin_memory=True)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 14 * 14, 1)
)
model = data_parallel(model.to(device()))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
scaler = torch.amp.GradScaler("cuda")
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
checkpoint(**parts, every_s=0)
for x, y in (loop := track(loader, epochs=4)):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = nn.functional.mse_loss(model(x.to(device(), non_blocking=True)).squeeze(1), y.to(device()))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    report(loss=loss)
    if loop.done + 1 == killed_at:
        os.kill(os.getpid(), signal.SIGKILL)
torch.save(
    [{name: part.state_dict() for name, part in parts.items()}, torch.rand(3, device="cuda")], output_dir() / "end.pt"
)
