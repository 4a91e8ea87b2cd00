"""A data-parallel training script, started by ``test_parallel_combinations``: ``CASE.json SOCKET``.

The case names the sampler, the optimizer, the scheduler and the form of the loop, and maps numbers of done batches to
the number of processes from then on.
"""

import itertools
import json
import os
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from tests.unit.train.forked_followers import fork_followers
from torch.optim import lr_scheduler
from torch.utils import data

from paceline.train import Kept, _session, checkpoint, data_parallel, output_dir, track
from paceline.train.parallel._lead import Lead

SAMPLES, BATCH_SIZE, EPOCHS = 26, 6, 3
case = json.loads(Path(sys.argv[1]).read_text())
fork_followers(sys.argv[2])
_session.current.clock = itertools.count().__next__  # the loop reads its share of the devices after every batch
torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
x = torch.randn(SAMPLES, 4)
samples = data.TensorDataset(x, x.square().sum(1, keepdim=True))


class Shrinking(data.Sampler):
    """Has fewer samples in each epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return SAMPLES - BATCH_SIZE * self.epoch

    def __iter__(self):
        return iter(range(len(self)))


sampler = {
    "in order": lambda: data.SequentialSampler(samples),
    "shuffled": lambda: data.RandomSampler(samples, generator=torch.Generator().manual_seed(2)),
    "weighted": lambda: data.WeightedRandomSampler([1.0, 2.0] * (SAMPLES // 2), SAMPLES),
    "distributed": lambda: data.DistributedSampler(samples, num_replicas=1, rank=0),
    "shrinking": Shrinking,
}[case["sampler"]]()
loader = data.DataLoader(samples, BATCH_SIZE, sampler=sampler, drop_last=case["drop_last"])
layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
model = data_parallel(layers)
optimizer = getattr(torch.optim, case["optimizer"])(model.parameters(), lr=0.01)
scheduler = {
    "OneCycleLR": lambda: lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=40, cycle_momentum=False),
    "StepLR": lambda: lr_scheduler.StepLR(optimizer, 2, gamma=0.7),
}[case["scheduler"]]()
average = torch.optim.swa_utils.AveragedModel(layers)
state = Kept(steps=0)
checkpoint(model=model, optimizer=optimizer, scheduler=scheduler, average=average, state=state)


def train(features, target):
    loss = torch.nn.functional.mse_loss(model(features), target)
    if case["form"] == "two calls":
        loss = loss + model(features.flip(1)).square().mean()
    loss.backward()
    return loss.detach()


lead = _session.current.role if isinstance(_session.current.role, Lead) else None
loop = track(loader, epochs=EPOCHS)
for number, (features, target) in loop.enumerate():
    processes = case["processes"].get(str(number))
    if lead is not None and processes:
        Path(os.environ["PACELINE_CONTROL"]).write_text(json.dumps({"devices": processes}))
        while lead.devices != processes and not lead.adjust_processes(processes):
            time.sleep(0.005)
    steps = case["form"] != "accumulation" or number % 3 == 2 or loop.epoch_end
    if case["form"] == "closure":
        optimizer.step(partial(train, features, target))
    else:
        with nullcontext() if steps else model.no_sync():
            train(features, target)
        if case["form"] == "clipping":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if steps:
            optimizer.step()
    if steps:
        optimizer.zero_grad()
        state.steps += 1
        average.update_parameters(layers)
    if case["each"] == "batch" or loop.epoch_end:
        scheduler.step()
torch.save([model.state_dict(), average.state_dict(), state.steps], output_dir() / "result.pt")
