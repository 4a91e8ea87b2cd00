"""A training that counts its samples, and kills itself in its first life. ``writer.py`` runs it as a job."""

import os
import signal
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from paceline.train import Kept, checkpoint, output_dir, report, track

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(torch.arange(12.0), batch_size=2, shuffle=True)
state = Kept(seen=[])
checkpoint(model=model, optimizer=optimizer, state=state, every_s=0)
for batch in track(loader, epochs=3):
    optimizer.zero_grad()
    loss = model(batch.unsqueeze(1)).square().mean()
    loss.backward()
    optimizer.step()
    state.seen += batch.tolist()
    report(loss=loss)
    if sys.argv[1] == "0" and len(state.seen) == 16:
        os.kill(os.getpid(), signal.SIGTERM)
Path(output_dir(), "result").write_text(repr(state.seen))
