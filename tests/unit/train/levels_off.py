"""A training whose accuracy levels off, and whose state counts its samples. Started by ``test_asynchronous``.

``python levels_off.py SAMPLES EPOCHS GAIN``; ``hold`` is as for ``counted.py``.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import Converged, checkpoint, output_dir, report, track

samples, epochs, gain = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.manual_seed(0)
model = nn.ParameterDict({"counts": nn.Parameter(torch.zeros(samples, dtype=torch.float64))})
loader = DataLoader(TensorDataset(torch.arange(samples)), 4, shuffle=True)
checkpoint(model=model)
hold = output_dir() / "hold"
loop = track(loader, epochs=epochs, until=Converged("accuracy", gain))
for (indices,) in loop:
    with torch.no_grad():
        model["counts"][indices] += 1
    while hold.exists() and loop.done >= int(hold.read_text()):
        time.sleep(0.01)
    if loop.epoch_end:
        report(accuracy=0.9 - 0.5 / float(model["counts"].mean()))
torch.save(model.state_dict(), output_dir() / "model.pt")
