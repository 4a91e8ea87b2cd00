"""A training of a numpy model, in a process without torch, started by ``test_without_torch``."""

import os
import signal
import sys
from pathlib import Path

sys.modules["torch"] = None  # an import of torch fails, as if it were not installed

import numpy  # noqa: E402

from paceline.train import Kept, checkpoint, output_dir, track, track_epochs  # noqa: E402

restarts = int(sys.argv[1])
state = Kept(weights=numpy.zeros(3, numpy.float32), moments=(numpy.zeros(3), 0), best=None, by_size={1: 2 + 1j})
state.generator = numpy.random.default_rng(5)
numpy.random.seed(3)
checkpoint(state=state, every_s=0)
for epoch in track_epochs(3):
    order = numpy.random.permutation(4)
    for batch in track(order.tolist()):
        gradient = state.weights - state.generator.normal(batch, 1.0, 3) + numpy.random.rand(3)
        state.weights = (state.weights - 0.1 * gradient).astype(numpy.float32)
        state.moments = (state.moments[0] + gradient, state.moments[1] + 1)
        if restarts == 0 and (epoch, batch) == (1, int(order[2])):
            os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    state.best = float(state.weights.sum())
    state.by_size[epoch] = state.best
Path(output_dir(), "result").write_text(
    repr((vars(state) | {"generator": state.generator.random()}, numpy.random.rand()))
)
