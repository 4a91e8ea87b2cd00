"""Training code with a loop over epochs that may be ended by a signal, started by ``test_resume_epochs``.

``python lives_of_epochs.py SCENARIO RESTARTS`` writes what it did and a digest of the final state. Each epoch changes
the learning rate and draws new samples before its loop over batches; the body ends with a validation that draws random
numbers, a scheduler that depends on its result, and values of its own.
"""

import hashlib
import json
import os
import random
import signal
import sys

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

from paceline.train import Kept, checkpoint, output_dir, report, stop_early, track, track_epochs

EPOCHS, SAMPLES = 3, 10  # four batches in an epoch


class DrawnSamples(Dataset):
    """Samples that each epoch draws anew."""

    def draw(self):
        self.values = torch.rand(SAMPLES, 4) + random.random() + numpy.random.rand()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, self.values[index]


class Life:
    def __init__(self, scenario, restarts, seen):
        self.scenario, self.seen = scenario, seen
        kills = scenario["kills"]
        self.kill = kills[restarts] if restarts < len(kills) else None

    def note(self, place):
        """Write down a place that was reached, and end the process if it is to be ended here."""
        self.seen.write(f"{place}\n")
        self.seen.flush()
        if self.kill is not None and self.kill[1] == place:
            os.kill(os.getpid(), getattr(signal, self.kill[0]))

    def train(self, model, optimizer, loader, state):
        model.train()
        for number, (index, x) in track(loader).enumerate():
            loss = (model(x).squeeze() - index / 10).square().mean() * float(state.generator.random())
            loss.backward()
            if (number + 1) % self.scenario["accumulate"] == 0:
                optimizer.step()
                optimizer.zero_grad()
            report(loss=loss)
            self.note(f"{state.epoch}.{number}")
            if number + 1 == self.scenario.get("batches"):
                break

    def validate(self, model, state):
        model.eval()
        with torch.no_grad():
            return float(model(torch.rand(8, 4)).square().mean()) * state.factor

    def run(self):
        torch.manual_seed(1)
        random.seed(2)
        numpy.random.seed(3)
        samples = DrawnSamples()
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.7)
        state = Kept(best=None, losses=[], generator=numpy.random.default_rng(4), epoch=None, factor=1.0)
        restored = checkpoint(model=model, optimizer=optimizer, scheduler=scheduler, state=state, every_s=0)
        if restored:
            torch.rand(7)  # random numbers drawn before the loop must not affect the result
        for state.epoch in track_epochs(range(1, EPOCHS + 1)):
            optimizer.param_groups[0]["lr"] *= 0.9
            samples.draw()
            self.note(f"{state.epoch} begins")
            generator = torch.Generator().manual_seed(state.epoch) if self.scenario.get("generator") else None
            self.train(
                model,
                optimizer,
                DataLoader(samples, 3, shuffle=True, generator=generator, num_workers=self.scenario.get("workers", 0)),
                state,
            )
            loss = self.validate(model, state)
            scheduler.step(loss)
            state.losses.append(numpy.float32(loss))
            state.factor *= 1.5
            if state.best is None or loss < state.best:
                state.best = loss
            self.note(f"{state.epoch} ends")
            if state.epoch == self.scenario.get("stop_after"):
                stop_early()
        digest = hashlib.sha256(repr((state.state_dict(), optimizer.state_dict(), scheduler.state_dict())).encode())
        for tensor in [
            *model.state_dict().values(),
            torch.rand(3),
            torch.tensor(random.random() + numpy.random.rand()),
        ]:
            digest.update(tensor.numpy().tobytes())
        return f"{digest.hexdigest()} {state.losses}"


scenario, restarts = json.loads(sys.argv[1]), int(sys.argv[2])
with open(output_dir() / f"seen-{restarts}", "w") as seen:
    digest = Life(scenario, restarts, seen).run()
(output_dir() / "digest").write_text(digest)
