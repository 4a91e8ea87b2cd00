"""Training scripts of common kinds, started by ``test_training_code``.

``python training_code.py KIND SEEN SERVER`` trains for two epochs and writes the trained samples into the folder SEEN.
It is the same script alone, data-parallel (on the devices in ``$PACELINE_CONTROL``, with followers forked from the
Python process at the socket SERVER) and as a worker of a fleet.
"""

import contextlib
import itertools
import json
import os
import sys
import time
from pathlib import Path

import numpy
import torch
from tests.unit.train.forked_followers import fork_followers
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SubsetRandomSampler

from paceline.train import _session, checkpoint, data_parallel, track
from paceline.train.parallel._lead import Lead

kind, data_parallel_wanted = sys.argv[1], "PACELINE_CONTROL" in os.environ
fork_followers(sys.argv[3])
SAMPLES, BATCH_SIZE, EPOCHS = 22, 4, 2


class Samples(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return int(index), torch.full((6,), int(index) / SAMPLES)


class Stream(IterableDataset):
    def __iter__(self):
        return map(Samples().__getitem__, range(SAMPLES))


class OwnBatchSampler:
    """A batch sampler without ``batch_size``."""

    def __iter__(self):
        order = torch.randperm(SAMPLES).tolist()
        return iter([order[start : start + BATCH_SIZE] for start in range(0, SAMPLES, BATCH_SIZE)])

    def __len__(self):
        return -(-SAMPLES // BATCH_SIZE)


class EpochSampler(RandomSampler):
    """A sampler that is shuffled anew only by ``set_epoch``, like ``DistributedSampler``."""

    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch)).tolist())


class TwoLoaders:
    """The batches of two loaders at once."""

    def __init__(self):
        self.loaders = DataLoader(Samples(), BATCH_SIZE, shuffle=True), DataLoader(Samples(), BATCH_SIZE)

    def __iter__(self):
        for first, _ in zip(*self.loaders, strict=True):
            yield first

    def __len__(self):
        return len(self.loaders[0])


LOADERS = {
    "an `IterableDataset`": lambda: DataLoader(Stream(), BATCH_SIZE),
    "a generator of batches": lambda: iter(list(DataLoader(Samples(), BATCH_SIZE, shuffle=True)) * EPOCHS),
    "several loaders": TwoLoaders,
    "a `DataLoader` with `batch_size=None`": lambda: DataLoader(Samples(), None, shuffle=True),
    "a batch sampler without `batch_size`": lambda: DataLoader(Samples(), batch_sampler=OwnBatchSampler()),
    "`SubsetRandomSampler` over numpy indices": lambda: DataLoader(
        Samples(), BATCH_SIZE, sampler=SubsetRandomSampler(numpy.arange(SAMPLES))
    ),
    "a sampler with `set_epoch`": lambda: DataLoader(Samples(), BATCH_SIZE, sampler=EpochSampler(Samples())),
    "a `BatchSampler`": lambda: DataLoader(
        Samples(), batch_sampler=BatchSampler(RandomSampler(Samples()), BATCH_SIZE, drop_last=False)
    ),
}

torch.manual_seed(0)
# Each reading advances the clock by a second, so the loop reads its CPU share after every batch.
_session.current.clock = itertools.count().__next__
loader = LOADERS[kind]() if kind in LOADERS else DataLoader(Samples(), BATCH_SIZE, shuffle=True)
backbone, head = torch.nn.Linear(6, 8), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(8, 1))
if kind == "a frozen backbone":
    backbone.requires_grad_(False)
model = torch.nn.Sequential(backbone, head)
if kind == "`torch.compile`":
    model = torch.compile(model, backend="aot_eager")
if data_parallel_wanted:
    model = data_parallel(model)
optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.01)
scaler = torch.amp.GradScaler("cpu", enabled=kind == "autocast and `GradScaler`")
checkpoint(model=model, optimizer=optimizer, scaler=scaler)
lead = role if isinstance(role := _session.current.role, Lead) else None
has_length = hasattr(loader, "__len__") and not isinstance(getattr(loader, "dataset", None), Stream)
epochs = 1 if kind == "a generator of batches" else EPOCHS
seen = Path(sys.argv[2], str(os.getpid()))
loop = track(loader, epochs=epochs, total=None if has_length else EPOCHS * -(-SAMPLES // BATCH_SIZE))
for index, x in loop:
    while lead is not None and loop.done == 0 and not lead.adjust_processes(2):
        time.sleep(0.005)
    accumulates = kind == "accumulation over two batches" and loop.done % 2 == 0
    waits = accumulates and hasattr(model, "no_sync")
    with torch.autocast("cpu", torch.bfloat16, enabled=scaler.is_enabled()):
        loss = (model(x).squeeze(-1).float() - torch.as_tensor(index) / SAMPLES).square().mean()
    with model.no_sync() if waits else contextlib.nullcontext():
        scaler.scale(loss).backward()
    if not accumulates:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert loss.isfinite()
    with seen.open("a") as file:
        print(json.dumps([model.weight if role else 1.0, torch.as_tensor(index).reshape(-1).tolist()]), file=file)
