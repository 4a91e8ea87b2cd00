"""A distributed training script whose model counts how often each sample was trained on: ``counts.py SAMPLES EPOCHS``.

After its first batch, a worker waits until the test creates the file ``go`` in its working folder.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, output_dir, track

samples, epochs = map(int, sys.argv[1:])
model = nn.Module()
model.counts = nn.Parameter(torch.zeros(samples))
checkpoint(model=model)
loop = track(DataLoader(TensorDataset(torch.arange(samples)), 4, shuffle=True), epochs=epochs)
for number, (indices,) in enumerate(loop):
    with torch.no_grad():
        model.counts[indices] += 1
    time.sleep(0.3)  # longer than the interval between progress lines, so every batch is reported
    while number and not Path("go").exists():
        time.sleep(0.05)
(output_dir() / "counts.json").write_text(json.dumps(model.counts.tolist()))
