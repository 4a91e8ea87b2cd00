"""A data-parallel training script whose first process trains as many batches as the file ``allowed`` says.

Each process writes the samples that it trains on to standard error. Without the file, the script trains to the end.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from paceline.train import checkpoint, data_parallel, device, output_dir, track
from paceline.train.job import is_follower

SAMPLES, BATCH_SIZE, EPOCHS = 40, 8, 200
ALLOWED = Path("allowed")


class SquaresDataset(Dataset):
    def __init__(self):
        self.x = torch.randn(SAMPLES, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, self.x[index], self.x[index].square().sum()


torch.manual_seed(0)
torch.set_default_dtype(torch.float64)  # rounding errors are smaller than the errors to detect
loader = DataLoader(SquaresDataset(), BATCH_SIZE, shuffle=True)
layers = torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
model = data_parallel(torch.nn.Sequential(*layers).to(device()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
checkpoint(model=model, optimizer=optimizer, every_s=0.5)
loop = track(loader, epochs=EPOCHS)
for indices, x, y in loop:
    while not is_follower() and ALLOWED.exists() and int(ALLOWED.read_text() or 0) <= loop.done:
        time.sleep(0.01)
    torch.nn.functional.mse_loss(model(x).squeeze(1), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    print("seen", json.dumps([loop.epoch, model.weight, indices.tolist()]), file=sys.stderr, flush=True)
torch.save(model.state_dict(), output_dir() / "model.pt")
print("ended on", loop.done)
