"""The API for training code: a loop that reports its progress to a deadline controller, and exact resume.

It runs inside the job and needs only the standard library. It uses torch if the training code has imported torch,
and numpy in ``resampled``.

>>> batches = [[1, 2], [3, 4]]
>>> sum(len(batch) for batch in track(batches, epochs=3))
12
"""

from __future__ import annotations

from ._checkpoint import checkpoint
from ._epochs import track_epochs
from ._loop import Loop
from ._resampled import resampled
from ._session import report, stop_early
from ._track import track
from ._trainings import expect_trainings
from .job import input_dir, output_dir
from .pacing.monitor import Converged
from .parallel.data_parallel import data_parallel, device
from .saving import first_states
from .saving.kept import Kept, KeptVariables

__all__ = [
    "Converged",
    "Kept",
    "KeptVariables",
    "Loop",
    "checkpoint",
    "data_parallel",
    "device",
    "expect_trainings",
    "input_dir",
    "output_dir",
    "report",
    "resampled",
    "stop_early",
    "track",
    "track_epochs",
]

first_states.begin()
