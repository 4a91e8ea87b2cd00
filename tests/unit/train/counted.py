"""A training whose state counts how often each sample was trained on. Started by ``test_asynchronous``.

``python counted.py SAMPLES EPOCHS BATCH_S [WORKERS] [STOP_AFTER] [STEP] [BUSY]``

A batch waits for ``BATCH_S`` seconds; if ``BUSY`` is 1 it computes for as many CPU seconds. While there is a file
``hold`` in the folder of its output, the batch after as many as the file says (0 if it is empty) does not end, and the
file ``held`` says after how many that is: so both sides of a race meet, however slow the machine is. After
``STOP_AFTER`` batches it stops early; if that is negative, it leaves the loop at once as well.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.train import checkpoint, output_dir, report, stop_early, track

given, defaults = [float(one) for one in sys.argv[1:]], [0, 0, 1, 0]
samples, epochs, batch_s, workers, stop_after, step, busy = given + defaults[len(given) - 3 :]
torch.manual_seed(0)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(int(samples), dtype=torch.float64))
        self.register_buffer("batches", torch.tensor(0))


model = Counts()
loader = DataLoader(TensorDataset(torch.arange(int(samples))), 4, shuffle=True, num_workers=int(workers))
checkpoint(model=model)
hold = output_dir() / "hold"
loop = track(loader, epochs=int(epochs))
ends = 0


def held():
    try:
        if loop.done < int(hold.read_text() or 0):
            return False
    except FileNotFoundError:
        return False
    (output_dir() / "held").write_text(str(loop.done))
    return True


for (indices,) in loop:
    with torch.no_grad():
        model.counts[indices] += step
    model.batches += 1
    if busy:
        end_s = time.thread_time() + batch_s
        while time.thread_time() < end_s:
            pass
    else:
        time.sleep(batch_s)
    while held():
        time.sleep(0.01)
    ends += loop.epoch_end
    report(loss=1.0, ends=ends)
    if stop_after and loop.done + 1 >= abs(stop_after):
        stop_early()
        if stop_after < 0:
            break
torch.save(model.state_dict(), output_dir() / "model.pt")
