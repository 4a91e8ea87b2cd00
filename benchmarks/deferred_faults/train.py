"""``train.py BATCHES``: each batch takes 0.02 s of CPU time. The model counts them, so a lost or repeated one shows."""

import json
import sys
import time

from paceline.train import checkpoint, output_dir, track


class Counter:
    """Counts batches, and is saved with the checkpoint."""

    batches = 0

    def state_dict(self):
        """Return the state to save."""
        return {"batches": self.batches}

    def load_state_dict(self, state):
        """Restore a saved state."""
        self.batches = state["batches"]


counter = Counter()
checkpoint(model=counter, every_s=1.0)
for _ in track(range(int(sys.argv[1]))):
    until_s = time.process_time() + 0.02
    while time.process_time() < until_s:
        pass
    counter.batches += 1
(output_dir() / "model.json").write_text(json.dumps(counter.state_dict()))
