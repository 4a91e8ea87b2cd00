"""A training script without torch that ends when the test opens a gate, so no test depends on the machine's speed.

A gate is a file in FOLDER that the test creates, see ``gates.py``. The script trains until ``go`` exists. It can also
wait at the gates ``begin`` and ``end``, before the first and after the last batch.
"""

import argparse
import json
import time
from pathlib import Path

from paceline.train import checkpoint, output_dir, report, stop_early, track

arguments = argparse.ArgumentParser()
arguments.add_argument("gates", nargs="*", help="gates in addition to go: begin, end")
arguments.add_argument("--folder", type=Path, default=Path())
arguments.add_argument("--checkpoint", action="store_true", help="save a checkpoint after every batch (needs torch)")
chosen = arguments.parse_args()


class BatchCounter:
    """A model that counts its training batches."""

    batches = 0

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]


def wait_at_gate(gate):
    while not (chosen.folder / gate).exists():
        time.sleep(0.05)


if "begin" in chosen.gates:
    wait_at_gate("begin")
model = BatchCounter()
if chosen.checkpoint:
    checkpoint(model=model, every_s=0)
loop = track(range(10_000))
for _ in loop:
    time.sleep(0.3)  # longer than the interval between progress lines, so every batch is reported
    model.batches += 1
    report(loss=1 / model.batches)
    if (chosen.folder / "go").exists():
        stop_early()
if "end" in chosen.gates:
    wait_at_gate("end")
(output_dir() / "model.json").write_text(json.dumps({**model.state_dict(), "done": loop.done}))
print("model saved")
