"""A training script whose model counts how often each sample was trained on: ``patient.py SAMPLES EPOCHS [GATE...]``.

Each batch takes 0.2 s until the test opens the gate ``go``, see ``gates.py``, so a test has enough time on a fast
machine. After that, batches are as fast as possible. The script can also wait at the gates ``begin``, before all
imports, and ``end``, after the last batch.
"""

import sys
import time
from pathlib import Path

samples, epochs, gates = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]


def wait_at_gate(gate):
    if gate in gates:
        print("waits at", gate, flush=True)
        while not Path(gate).exists():
            time.sleep(0.05)


wait_at_gate("begin")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from paceline.train import checkpoint, output_dir, track  # noqa: E402

model = nn.Module()
model.counts = nn.Parameter(torch.zeros(samples))
checkpoint(model=model, every_s=1)
for (indices,) in track(DataLoader(TensorDataset(torch.arange(samples)), 4, shuffle=True), epochs=epochs):
    with torch.no_grad():
        model.counts[indices] += 1
    if not Path("go").exists():
        time.sleep(0.2)
wait_at_gate("end")
torch.save(model.state_dict(), output_dir() / "model.pt")
