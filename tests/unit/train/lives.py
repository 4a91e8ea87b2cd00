"""A small training script that may be ended by a signal, started by ``test_resume_after_death``.

``python lives.py SCENARIO RESTARTS`` writes the trained batches and a digest of the final state.
"""

import hashlib
import json
import os
import random
import signal
import sys

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from paceline.train import checkpoint, output_dir, report, stop_early, track

AFTER_THE_LOOP = 0


class NoisySamples(Dataset):
    """Samples with new noise at each read, from the random generators of torch, Python and numpy."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        noise = torch.rand(4) + random.random() + numpy.random.rand()
        return index, noise + index / self.samples


class PlainSamples(NoisySamples):
    """Samples without noise, because the generators of persistent loader workers cannot be restored."""

    def __getitem__(self, index):
        return index, torch.full((4,), index / self.samples)


class NoisyStream(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        dataset = NoisySamples(self.samples)
        return (dataset[index] for index in range(self.samples))


def make_loader(scenario):
    samples = scenario["samples"]
    dataset, common = NoisySamples(samples), {"batch_size": 3, "num_workers": scenario["workers"]}
    kind = scenario["loader"]
    if kind == "shuffle":
        return DataLoader(dataset, shuffle=True, **common)
    if kind == "persistent":
        return DataLoader(PlainSamples(samples), shuffle=True, persistent_workers=True, **common)
    if kind == "generator":
        return DataLoader(dataset, shuffle=True, generator=torch.Generator().manual_seed(5), **common)
    if kind == "stream":
        return DataLoader(NoisyStream(samples), **common)
    samplers = {
        "replacement": RandomSampler(dataset, replacement=True, num_samples=samples),
        "weighted": WeightedRandomSampler([1.0, 2.0] * 5, 10),
    }
    return DataLoader(dataset, sampler=samplers[kind], **common)


def train(scenario, restarts, seen):
    torch.manual_seed(1)
    random.seed(2)
    numpy.random.seed(3)
    loader = make_loader(scenario)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if checkpoint(**parts, every_s=scenario["every_s"]):
        torch.rand(7)  # random numbers drawn before the loop must not affect the result
    kill = dict([scenario["kills"][restarts]]) if restarts < len(scenario["kills"]) else {}
    for number in range(scenario.get("loops", 1)):
        loop = track(loader, epochs=scenario["epochs"], total=scenario.get("total"))
        for index, x in loop:
            seen.write(f"{loop.done} {index.tolist()}\n")
            seen.flush()
            optimizer.zero_grad()
            loss = (model(x).squeeze() - index / 10).square().mean()
            loss.backward()
            optimizer.step()
            report(loss=loss)
            if loop.epoch_end:
                scheduler.step()
            if loop.done + 1 == scenario.get("stop_after"):
                stop_early()
            for name, done in kill.items():
                if number * loop.total + loop.done + 1 == done:
                    os.kill(os.getpid(), getattr(signal, name))
    if kill.get("SIGKILL") == AFTER_THE_LOOP:
        os.kill(os.getpid(), signal.SIGKILL)
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    momentum = [state["momentum_buffer"] for state in optimizer.state_dict()["state"].values()]
    for tensor in [*momentum, torch.rand(3), torch.tensor([random.random(), numpy.random.rand()])]:
        digest.update(tensor.numpy().tobytes())
    digest.update(str(scheduler.get_last_lr()).encode())
    return digest.hexdigest()


scenario, restarts = json.loads(sys.argv[1]), int(sys.argv[2])
with open(output_dir() / f"seen-{restarts}", "w") as seen:
    digest = train(scenario, restarts, seen)
(output_dir() / "digest").write_text(digest)
