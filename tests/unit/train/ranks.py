"""A training script of two ranks, started by ``test_ranks``; each rank has its own folder for checkpoints.

``python ranks.py ddp|accelerate KILLED_AT TERMINATED_AT``: rank 0 kills itself after the first number of batches unless
it has resumed, and sends SIGTERM to its ``torchrun`` after the second. So no signal depends on the machine's speed.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from paceline.train import _session, checkpoint, output_dir, report, track

library, killed_at, terminated_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank = int(os.environ["RANK"])
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
first = resumed = checkpoint(model=model, optimizer=optimizer, path=output_dir() / f"checkpoint-{rank}", every_s=0)
loop = track(loader, epochs=3)
with (output_dir() / f"seen-{rank}").open("a") as seen:
    for indices, x, y in loop:
        print(loop.done, indices.tolist(), file=seen, flush=True)
        if first:
            (output_dir() / f"random-{rank}").write_text(str(torch.rand(1).item()))
            first = False
        loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward() if library == "ddp" else accelerator.backward(loss)
        optimizer.step()
        report(loss=loss)
        if rank == 0 and loop.done + 1 == killed_at and not resumed:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0 and loop.done + 1 == terminated_at:
            os.kill(os.getppid(), signal.SIGTERM)
            while not _session.current.terminating:
                time.sleep(0.01)
torch.save(model.module.state_dict(), output_dir() / f"model-{rank}.pt")
dist.destroy_process_group()
