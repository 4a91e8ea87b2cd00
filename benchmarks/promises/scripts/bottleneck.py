"""Endless training script with one thread and a chosen size of the state: ``bottleneck.py NUMBERS BATCH_CPU_S``."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, track

numbers, batch_cpu_s = int(sys.argv[1]), float(sys.argv[2])
model = nn.Module()
model.state = nn.Parameter(torch.zeros(numbers))
checkpoint(model=model)
for (samples,) in track(DataLoader(TensorDataset(torch.arange(10_000)), 10, shuffle=True), epochs=1000, threads=1):
    until_s = time.thread_time() + batch_cpu_s
    while time.thread_time() < until_s:
        pass
    with torch.no_grad():
        model.state[: len(samples)] += 1
