"""A data-parallel training script, started by ``test_device_pods``, whose further devices are pods of their own.

Processes that run ``paceline.train.parallel.pod`` stand in for the pods. The plan in
``python device_pods.py PLAN.json`` maps numbers of done batches to what happens then: ``join`` has the devices whose
pods start, ``leave`` those whose pods get SIGTERM, ``lose`` those whose pods are killed without notice between two
batches, and ``lose in batch`` those that are killed while the group trains the batch. On the devices of ``fail``, the
script fails.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from paceline.train import _session, checkpoint, data_parallel, device, output_dir, track
from paceline.train.job import device_index
from paceline.train.parallel._lead import Lead

SAMPLES, BATCH_SIZE, EPOCHS = 50, 8, 4


class SquaresDataset(Dataset):
    def __init__(self):
        self.x = torch.randn(SAMPLES, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, self.x[index], self.x[index].square().sum()


plan = json.loads(Path(sys.argv[1]).read_text())
folder = Path(sys.argv[1]).parent
torch.set_default_dtype(torch.float64)  # rounding errors are smaller than the errors to detect
order = torch.randperm(SAMPLES).tolist()  # unseeded: the processes need the first random states of the lead
loader = DataLoader(SquaresDataset(), BATCH_SIZE, shuffle=True)
torch.manual_seed(0)
layers = torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
model = data_parallel(torch.nn.Sequential(*layers).to(device()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
checkpoint(model=model, optimizer=optimizer, every_s=plan.get("every_s", 1e9))
role = _session.current.role
lead = role if isinstance(role, Lead) else None
pods, left = {}, []


def start(number):
    environment = {name: value for name, value in os.environ.items() if name != "PACELINE_DEVICE_PODS"}
    environment |= {"PACELINE_LEAD_ADDRESS": f"127.0.0.1:{lead._pods.port}", "PACELINE_DEVICE_INDEX": str(number)}
    command = [sys.executable, "-m", "paceline.train.parallel.pod"]
    pods[number] = subprocess.Popen(command, env=environment, start_new_session=True)
    (folder / "pods" / str(pods[number].pid)).touch()


def wait_for(condition):
    while not condition():
        time.sleep(0.005)


def ready():
    lead.adjust_processes(1)
    return len(lead._ready_processes()) + len(lead._active) == len(pods) - len(left)


def act(events):
    for number in events.get("join", []):
        start(number)
    if "join" in events:
        wait_for(ready)
    for number in events.get("leave", []):
        pods[number].terminate()
        wait_for(lambda number=number: lead._pods.is_leaving(number))
        left.append(number)
    for number in events.get("lose", []):
        os.killpg(pods[number].pid, signal.SIGKILL)
    if "lose" in events:
        wait_for(lead._leaving_pods)
    if events:
        _session.current.loop.check_now()
        _session.current.loop._next_share_s = float("-inf")


loop = track(loader, epochs=EPOCHS)
for indices, x, y in loop:
    events = plan["events"].get(str(loop.done), {}) if lead is not None else {}
    lost = device_index() in plan["events"].get(str(loop.done), {}).get("lose in batch", [])
    if lead is None and lost:
        os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
    if lead is None and device_index() in plan["events"].get(str(loop.done), {}).get("fail", []):
        raise ArithmeticError("the cause")
    torch.nn.functional.mse_loss(model(x).squeeze(1), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    with (folder / "seen" / str(os.getpid())).open("a") as file:
        print(loop.epoch, model.weight, json.dumps([indices.tolist(), order[:3]]), file=file)
    act(events)
torch.save(model.state_dict(), output_dir() / "model.pt")
for pod in pods.values():
    if pod.poll() is None:
        pod.terminate()
    pod.wait()
    (folder / "pods" / str(pod.pid)).unlink()
print("ended on", loop.done, [pod.returncode for pod in pods.values()])
