"""A training script of two ranks, started by ``test_ranks``; each rank has its own folder for checkpoints.

``python ranks.py ddp|accelerate ENDS``: ENDS is a JSON list with a signal, a rank and a number of batches for each
start except the last. After this number of batches, the rank sends itself SIGKILL, or SIGTERM to its ``torchrun``
(without ``torchrun``, to all ranks). So no signal depends on the machine's speed.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from paceline.train import _session, checkpoint, output_dir, report, track

library, ends = sys.argv[1], json.loads(sys.argv[2])
rank = int(os.environ["RANK"])


def lines(name):
    path = output_dir() / name
    return path.read_text().splitlines() if path.exists() else []


def add_line(name, text):
    with (output_dir() / name).open("a") as file:
        print(text, file=file)


def end_if_planned(done):
    """Send the signal that is planned for this start after ``done`` batches, if any."""
    if restarts == len(ends) or ends[restarts][1:] != [rank, done]:
        return
    add_line("ended", json.dumps(ends[restarts]))
    if ends[restarts][0] == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    for pid in [os.getppid()] if under_torchrun else [int(lines(f"pids-{one}")[-1]) for one in range(2)]:
        os.kill(pid, signal.SIGTERM)
    while not _session.current.terminating:
        time.sleep(0.01)


restarts = len(lines(f"pids-{rank}"))
add_line(f"pids-{rank}", os.getpid())
torch.manual_seed(0)
samples = torch.randn(26, 4, generator=torch.Generator().manual_seed(1))
data = TensorDataset(torch.arange(26), samples, samples.square().sum(1))
model = torch.nn.Linear(4, 1)
if library == "ddp":
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
    loader = DataLoader(data, 3, sampler=DistributedSampler(data))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
if library == "accelerate":
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = DataLoader(data, 3, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
first = checkpoint(model=model, optimizer=optimizer, path=output_dir() / f"checkpoint-{rank}", every_s=0)
loop = track(loader, epochs=3)
for indices, x, y in loop:
    add_line(f"seen-{rank}", f"{loop.done} {indices.tolist()}")
    if first:
        (output_dir() / f"random-{rank}").write_text(str(torch.rand(1).item()))
        first = False
    loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward() if library == "ddp" else accelerator.backward(loss)
    optimizer.step()
    report(loss=loss)
    end_if_planned(loop.done + 1)
torch.save(model.module.state_dict(), output_dir() / f"model-{rank}.pt")
dist.destroy_process_group()
