"""A training script, started by ``machines.py``, whose model counts how often each sample was trained on.

``python counted.py SAMPLES EPOCHS OPTIONS``. The options are JSON:

- ``workers``: number of the loader's worker processes
- ``step``: amount by which a batch increases the counts of its samples
- ``stop_after``: number of batches before ``stop_early()``; if negative, the script also breaks out of the loop
- ``fail_after``: number of this worker's batches before an exception; if negative, the script continues after its loop
- ``leave_after``: number of this worker's batches before a ``break`` without ``stop_early()``
- ``gain``: training ends after the first epoch that improves the accuracy by less
- ``counters``: number of the model's counts, SAMPLES if omitted
- ``layers``: names of further layers of the model, in the order of their definition
- ``shift``: number of positions by which the samples are shifted

A file ``hold`` in the output folder pauses the script after the number of this worker's batches in the file (0 if
empty). During the pause, the file ``held`` contains this number. In this way, tests can produce both
outcomes of a race at any machine speed.
"""

import json
import sys
import time
from contextlib import suppress

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import Converged, checkpoint, output_dir, report, stop_early, track

samples, epochs, options = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
step, stop_after, gain = options.get("step", 1), options.get("stop_after", 0), options.get("gain")
fail_after, leave_after = options.get("fail_after", 0), options.get("leave_after", 0)
torch.manual_seed(0)


class CountingModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(options.get("counters", samples), dtype=torch.float64))
        self.register_buffer("batches", torch.tensor(0))
        self.register_buffer("rows", torch.tensor(0))
        self.register_buffer("average", torch.tensor(0.0))  # moves towards 1, as the mean of batch normalisation would
        for name in options.get("layers", ()):
            self.add_module(name, nn.Linear(2, 2))


class Steps:
    """Counts batches, as an optimizer does. Its state is not part of the model."""

    value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


model, steps = CountingModel(), Steps()
data = TensorDataset(torch.arange(samples).roll(options.get("shift", 0)))
loader = DataLoader(data, 4, shuffle=True, num_workers=options.get("workers", 0))
checkpoint(model=model, steps=steps)
hold = output_dir() / "hold"
loop = track(loader, epochs=epochs, until=Converged("accuracy", gain) if gain else None)
ends = 0


def is_held():
    try:
        if own_done() < int(hold.read_text() or 0):
            return False
    except FileNotFoundError:
        return False
    # The process may be stopped here: a reader must never see an empty file.
    (output_dir() / "held.new").write_text(str(own_done()))
    (output_dir() / "held.new").rename(output_dir() / "held")
    return True


def own_done():
    return loop.own_progress[0]


with suppress(MemoryError if fail_after < 0 else ()):
    for (indices,) in loop:
        with torch.no_grad():
            model.counts[indices] += step
        model.batches += 1
        model.rows += len(indices)
        steps.value += 1
        with (output_dir() / "steps").open("a") as file:
            print(steps.value, file=file)
        model.average += 0.9 * (1 - model.average)
        while is_held():
            time.sleep(0.01)
        ends += loop.epoch_end
        report(loss=1.0, ends=ends)
        if leave_after and own_done() + 1 >= leave_after:
            break
        if fail_after and own_done() + 1 >= abs(fail_after):
            raise MemoryError("out of memory")
        if gain and loop.epoch_end:
            report(accuracy=0.9 - 0.5 / float(model.counts.mean()))
        if stop_after and own_done() + 1 >= abs(stop_after):
            stop_early()
            if stop_after < 0:
                break
torch.save(model.state_dict(), output_dir() / "model.pt")
