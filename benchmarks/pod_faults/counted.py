"""The training script of the rounds: ``counted.py BATCHES HOLD``. Its model is the same after every undisturbed run.

It needs no library, so it starts soon. Every line has the name of the process and a number: a lost or repeated line
shows. Before batch HOLD, the script waits for the file ``go`` in its working folder, and prints lines meanwhile.
"""

import json
import os
import random
import sys
import time
import uuid
from pathlib import Path

from paceline.train import checkpoint, output_dir, track

batches, hold = int(sys.argv[1]), int(sys.argv[2])
process, lines = uuid.uuid4().hex[:8], 0


def say(text):
    """Print a numbered line."""
    global lines
    lines += 1
    print(f"line {process} {lines} {text}", flush=True)


class Regression:
    """A linear regression, trained by gradient descent with momentum, that counts its batches."""

    batches, weights, momentum = 0, [0.0] * 4, [0.0] * 4

    def state_dict(self):
        """Return the state to save."""
        return {"batches": self.batches, "weights": self.weights, "momentum": self.momentum}

    def load_state_dict(self, state):
        """Restore a saved state."""
        self.batches, self.weights, self.momentum = state["batches"], state["weights"], state["momentum"]

    def train(self, inputs, target):
        """Train on a batch of one row."""
        error = sum(w * x for w, x in zip(self.weights, inputs, strict=True)) - target
        self.momentum = [0.9 * m + error * x for m, x in zip(self.momentum, inputs, strict=True)]
        self.weights = [w - 0.01 * m for w, m in zip(self.weights, self.momentum, strict=True)]
        self.batches += 1


random.seed(0)
model = Regression()
data = [([random.gauss(0, 1) for _ in range(4)], random.gauss(0, 1)) for _ in range(batches)]
if checkpoint(model=model, every_s=0.5):
    say(f"resumed after batch {model.batches}")
for inputs, target in track(data):
    number = model.batches + 1
    while number == hold and not Path("go").exists():
        say(f"waits before batch {number}")
        time.sleep(0.2)
    model.train([x + random.gauss(0, 0.1) for x in inputs], target)  # the noise has to be resumed, too
    say(f"batch {number}")
    time.sleep(0.1)
(output_dir() / "model.json").write_text(json.dumps(model.state_dict()))
(output_dir() / "ballast").write_bytes(os.urandom(4_000_000))  # collecting the output takes a moment
say("saved")
