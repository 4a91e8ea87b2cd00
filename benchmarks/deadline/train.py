"""Training script that runs in a container: trains one of the benchmark's models on random images."""

from __future__ import annotations

import argparse
import time

import torch
from models import MODELS
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, data_parallel, output_dir, report, track

CLASSES, EPOCHS = 10, 5

arguments = argparse.ArgumentParser()
arguments.add_argument("model", choices=MODELS)
arguments.add_argument("--batches", type=int, required=True, help="total number of batches, a multiple of the epochs")
arguments.add_argument("--threads", type=int, default=None, help="fixed thread count; by default, track chooses")
arguments.add_argument("--whole", action="store_true", help="train on whole devices, with one process per device")
chosen = arguments.parse_args()

torch.manual_seed(0)
make, image_size, batch_size = MODELS[chosen.model]
samples = chosen.batches // EPOCHS * batch_size
data = TensorDataset(torch.randn(min(samples, 512), 3, image_size, image_size))
labels = torch.randint(0, CLASSES, (samples,))
order = torch.arange(samples) % len(data)
loader = DataLoader(TensorDataset(order, labels), batch_size=batch_size, shuffle=True)
model = make(CLASSES, image_size)
if chosen.whole:
    model = data_parallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
checkpoint(model=model, optimizer=optimizer, every_s=30)

for chosen_images, wanted in track(loader, epochs=EPOCHS, threads=chosen.threads):
    loss = nn.functional.cross_entropy(model(data.tensors[0][chosen_images]), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(loss=loss)

report(cpu_s=time.process_time())  # includes all threads and the start-up
torch.save(model.state_dict(), output_dir() / "model.pt")
