"""A data-parallel training script, started by ``test_data_parallel``, whose number of processes follows a plan.

The plan in ``python parallel.py PLAN.json`` maps numbers of done batches to the number of processes from then on.
``variant`` is "evaluation mode", "accumulation" of the gradients of four batches, "batch normalisation", "unused
layer", which some batches skip, "undeclared" or "never used" without ``find_unused_parameters``, "unfrozen layer",
which is trained in some batches only, "own order", a sampler that draws from a generator that differs between the
processes, "reads the training", a sampler whose order the batches change, "error in the loop", "caught error in the
loop", "break in the loop" or "error in the data set" of a follower, "pause" of the job while the lead waits for the
late follower, "exit", where each process prints whether its loader's workers live when torch's handlers run at exit, or
"stop in a follower" or "in the lead" only.
``signalled`` followers send themselves a signal at "the script", before the loop, at "the loop", when they are ready to
join, or at "batch 9". The follower of the device ``late`` continues when the log says that training waits for it.
Followers are forked from the same Python process.
"""

import atexit
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import torch
from tests.unit.train.forked_followers import fork_followers
from torch.utils.data import DataLoader, Dataset

from paceline.train import _session, checkpoint, data_parallel, device, output_dir, stop_early, track
from paceline.train.job import device_index
from paceline.train.parallel import _watchdog
from paceline.train.parallel._lead import Lead

SAMPLES, BATCH_SIZE, EPOCHS = 50, 8, 4  # the last batch of an epoch has fewer samples than there are processes


class SquaresDataset(Dataset):
    def __init__(self):
        self.x = torch.randn(SAMPLES, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, self.x[index], self.x[index].square().sum()


class OccasionalLayer(torch.nn.Linear):
    skipped = False

    def forward(self, x):
        return x if self.skipped else super().forward(x)


plan = json.loads(Path(sys.argv[1]).read_text())
fork_followers(plan["fork"])
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)  # rounding errors are smaller than the errors to detect
# Each reading advances the clock by a second, so the loop reads its CPU share after every batch.
_session.current.clock = itertools.count().__next__
workers = plan["workers"]
loader = DataLoader(SquaresDataset(), BATCH_SIZE, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
variant = plan.get("variant")
if variant == "own order":
    loader = DataLoader(SquaresDataset(), BATCH_SIZE, sampler=numpy.random.default_rng().permutation(SAMPLES))
occasional = {name: lambda size: OccasionalLayer(size, size) for name in ("unused layer", "undeclared", "never used")}
special = {"batch normalisation": torch.nn.BatchNorm1d, **occasional}
layer = special.get(variant, torch.nn.Identity)(32)
layers = (torch.nn.Linear(4, 32), layer, torch.nn.Tanh(), torch.nn.Linear(32, 1))
model = torch.nn.Sequential(*layers).to(device())
model = data_parallel(model, find_unused_parameters=variant == "unused layer")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
checkpoint(model=model, optimizer=optimizer, every_s=1e9)
role = _session.current.role
lead = role if isinstance(role, Lead) else None
if lead is None and plan.get("followers_fail"):
    sys.exit(3)
for name, limit_s in plan.get("limits", {}).items():
    setattr(_watchdog, name, limit_s)
signalled = plan.get("signalled") if lead is None else None
if signalled and signalled["at"] == "the script":
    os.kill(os.getpid(), signal.Signals[signalled["signal"]])
elif signalled and signalled["at"] == "the loop":
    open_loop = role.open
    role.open = lambda *given: (open_loop(*given), os.kill(os.getpid(), signal.Signals[signalled["signal"]]))
errors = Path(sys.argv[1]).parent / "errors.txt"
wanted = {int(done): devices for done, devices in plan["wanted"].items()}
seen = Path(plan["seen"], str(os.getpid()))
if variant == "reads the training":
    order = list(range(SAMPLES))
    loader = DataLoader(SquaresDataset(), BATCH_SIZE, sampler=order)


def run_loop():
    for indices, x, y in loop:
        if lead is not None and loop.done in wanted:
            Path(os.environ["PACELINE_CONTROL"]).write_text(json.dumps({"devices": wanted[loop.done]}))
            while not lead.adjust_processes(wanted[loop.done]) and not plan.get("followers_fail") and not lead._failed:
                time.sleep(0.005)  # processes need seconds to start
        if lead is None and loop.done == 9:
            if variant in ("error in the loop", "caught error in the loop"):
                raise ArithmeticError("the cause")
            if variant == "break in the loop":
                break
            if variant == "error in the data set":
                SquaresDataset.__getitem__ = None
        model.train(variant != "evaluation mode")
        if signalled and signalled["at"] == f"batch {loop.done}":
            os.kill(os.getpid(), signal.Signals[signalled["signal"]])
        is_late = loop.done == 9 and device_index() == plan.get("late")
        while is_late and f"training waits for the process on device {device_index()}," not in errors.read_text():
            time.sleep(0.005)
        if variant == "pause" and is_late:
            resume = f"kill -STOP -{os.getpgrp()}; sleep {plan['pause_s']}; kill -CONT -{os.getpgrp()}"
            subprocess.run(["sh", "-c", resume], start_new_session=True, check=True)
        if variant == "reads the training":
            order.reverse()
        layer.skipped = 10 <= loop.done < 15 or variant == "never used"
        layers[0].requires_grad_(variant != "unfrozen layer" or 5 <= loop.done < 20)
        accumulates = variant == "accumulation" and loop.done % 4 < 3
        with model.no_sync() if accumulates else contextlib.nullcontext():
            torch.nn.functional.mse_loss(model(x).squeeze(1), y).backward()
        if not accumulates:
            optimizer.step()
            optimizer.zero_grad()
        with seen.open("a") as file:
            print(loop.epoch, model.weight, json.dumps(indices.tolist()), file=file)
        if loop.done == plan.get("killed_at") and (lead is None or plan["killed"] == "lead's group"):
            os.kill(os.getpid(), signal.SIGKILL) if plan["killed"] == "follower" else os.killpg(0, signal.SIGTERM)
        if variant == "exit" and loop.done == 20:
            workers = role._loader._iterator._workers
            atexit.register(lambda all: print([one.is_alive() for one in all], file=sys.stderr), workers)
        stops = {"stop in a follower": lead is None, "stop in the lead": lead is not None}.get(variant, True)
        if loop.done + 1 == plan.get("stop_after") and stops:
            stop_early()
        if variant == "timeout" and torch.distributed.is_initialized():
            exchange = torch.distributed.group.WORLD._get_backend(torch.device("cpu"))
            print("an exchange may take", exchange.options._timeout)
            stop_early()


for _ in range(plan.get("loops", 1)):
    loop = track(loader, epochs=EPOCHS)
    with contextlib.suppress(*[ArithmeticError] * (variant == "caught error in the loop")):
        run_loop()
torch.save(model.state_dict(), output_dir() / "model.pt")
print("ended on", loop.done)
