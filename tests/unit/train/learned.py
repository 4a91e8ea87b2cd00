"""A training that tells its loss over all samples at the end of each epoch. Started by ``test_parts``.

``python learned.py SAMPLES EPOCHS BATCH_S``
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, output_dir, track

samples, epochs, batch_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
random = torch.Generator().manual_seed(3)
inputs = torch.randn(samples, 8, generator=random)
wanted = (inputs @ torch.randn(8, generator=random) > 0).float()
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
checkpoint(model=model, optimizer=optimizer)
loop = track(DataLoader(TensorDataset(inputs, wanted), 4, shuffle=True), epochs=epochs)
for some, theirs in loop:
    loss = nn.functional.binary_cross_entropy_with_logits(model(some).squeeze(1), theirs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(batch_s)
    if loop.epoch_end:
        with torch.no_grad():
            over_all = nn.functional.binary_cross_entropy_with_logits(model(inputs).squeeze(1), wanted)
        print("curve", loop.epoch, over_all.item(), flush=True)
torch.save(model.state_dict(), output_dir() / "model.pt")
