"""A data-parallel training script, started by ``test_parallel_agreement``, in a form of the loop that is given.

``python parallel_forms.py FORM [FORKED]``. A second process joins when two batches are done. The script writes which
samples each process has trained to the output folder, which is that of the lead, and to ``SEEN``.
"""

import itertools
import json
import os
import random
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy
import torch

if "unseeded" in sys.argv[1]:  # as in a new Python process; a forked one has the states of its parent
    random.seed()
    numpy.random.seed()
    torch.seed()

from tests.unit.train.forked_followers import fork_followers
from torch.utils.data import DataLoader, TensorDataset, random_split

from paceline.train import _session, checkpoint, data_parallel, output_dir, track
from paceline.train.parallel import _watchdog
from paceline.train.parallel._lead import Lead

SAMPLES, BATCH_SIZE, EPOCHS = 26, 4, 3
form, join_at, join = sys.argv[1], 2, sys.argv[3:] != ["alone"]
fork_followers(sys.argv[2])
if form == "skips":  # in the other forms, a process of a busy machine must not count as one that never comes
    _watchdog._NEVER_COMING_LIMIT_S = 1.0
_session.current.clock = itertools.count().__next__  # the loop reads its share of the devices after every batch
torch.set_default_dtype(torch.float32 if form == "bf16" else torch.float64)


class Model(torch.nn.Module):
    """A linear model that counts samples of each kind, all samples and its calls, and has a pointer into a ring."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        if form == "counters":
            self.register_buffer("kinds", torch.zeros(2, dtype=torch.int64))
            self.register_buffer("samples", torch.tensor(0))
            self.register_buffer("calls", torch.tensor(0, dtype=torch.int32))
            self.register_buffer("pointer", torch.tensor(0))

    def forward(self, x):
        if form == "counters" and self.training:
            self.kinds += torch.bincount((x[:, 0] > 0).long(), minlength=2)
            self.samples += len(x)
            self.calls += 1
            self.pointer.copy_((self.pointer + len(x)) % 10)
        return self.linear(x).squeeze(1)


if form == "unseeded":
    x = torch.randn(SAMPLES, 3)
    x[:, 1] += torch.tensor(numpy.random.rand(SAMPLES)) + random.random()
    data, _ = random_split(TensorDataset(torch.arange(SAMPLES), x, x.sum(1)), [20, 6])
else:
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, 3)
    order = list(range(SAMPLES))
    if form == "own order":
        random.SystemRandom().shuffle(order)
    data = TensorDataset(torch.arange(SAMPLES), x[order], x[order].sum(1))
torch.manual_seed(1)
original = Model()
model = data_parallel(original)
parameters = list(model.parameters())
if form == "second module":
    parameters += torch.nn.Linear(3, 1).parameters()
optimizer = torch.optim.Adam(parameters, lr=0.05)
saved = torch.optim.swa_utils.AveragedModel(model) if form == "average" else model
checkpoint(**{"model": saved} | ({} if form == "unsaved optimizer" else {"optimizer": optimizer}))
lead = _session.current.role if isinstance(_session.current.role, Lead) else None
other_optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
loop = track(DataLoader(data, BATCH_SIZE, shuffle=True), epochs=EPOCHS)
own_count = itertools.count()
batches = enumerate(loop) if form == "enumerate" else ((next(own_count), batch) for batch in loop)
for own_number, (indices, x, y) in batches:
    if lead is not None and join and loop.done == join_at:
        Path(os.environ["PACELINE_CONTROL"]).write_text('{"devices": 2}')
        while not lead.adjust_processes(2):
            time.sleep(0.005)
    skipped = form == "skips" and loop.done >= 6 and (lead is None) == (sys.argv[3:] == ["follower"])
    if skipped:
        continue
    number = own_number if form.startswith("own number") else loop.done
    accumulates = form in ("accumulation", "own number", "own number, no_sync") and number % 4 != 3
    with model.no_sync() if accumulates and form != "own number" else nullcontext():
        if form == "unwrapped":
            torch.nn.functional.mse_loss(original(x), y).backward()
        elif form == "two backwards":
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward(retain_graph=True)
            loss.backward()
        elif form == "two calls":
            torch.nn.functional.mse_loss(model(x), y).backward()
            torch.nn.functional.mse_loss(model(x), 2 * y).backward()
        else:
            with torch.autocast("cpu", torch.bfloat16, enabled=form == "bf16"):
                predicted = model(x)
            torch.nn.functional.mse_loss(predicted.to(y.dtype), y).backward()
    if form == "average":
        saved.update_parameters(model)
    if form == "exception" and lead is None and loop.done == 6:
        raise KeyError("a bad label in row 17")
    if not accumulates:
        optimizer.step()
        optimizer.zero_grad()
    if form == "optimizer in a batch":
        inner = torch.optim.Adam([torch.ones(1, requires_grad=True)])
        inner.param_groups[0]["params"][0].square().sum().backward()
        inner.step()
    if form == "unsaved second optimizer":
        other_optimizer.step()
    with Path(os.environ["SEEN"]).open("a") as file:
        file.write(json.dumps([loop.epoch, indices.tolist() if model.weight else []]) + "\n")
torch.save(saved.state_dict(), output_dir() / "model.pt")
if form == "unseeded":
    (output_dir() / "split.json").write_text(json.dumps(sorted(data.indices)))
