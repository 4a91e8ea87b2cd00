"""The benchmark's survey resumes after an interruption and measures the same points as an uninterrupted survey."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from benchmarks.edge.measured import _ResumedBench

from paceline.errors import PacelineError
from paceline.fleet import Machine
from paceline.profiles.survey import Survey, default_axes

MACHINES = [Machine(name=name, kind=name[:4], cores=0.2, memory_gib=1) for name in ("nano1", "nano2", "tx21")]
POINTS, HELD_OUT, REPEATS = 24, 2, 2


class CountingBench:
    """A fake bench that returns the number of the measurement as the result."""

    def __init__(self, measured: int) -> None:
        self.measured = measured
        self.batch = None

    def train(self, batch):
        self.batch = batch

    def measure(self, loads, *, active, server):
        assert self.batch is not None, "no training job was started"
        self.measured += 1
        draw = np.random.default_rng(self.measured)
        same = {"server_stress": server.cpu, "workers": float(len(active)), "server_cpu": 0.1, "pushes_per_s": 3.0}
        return [
            {
                "machine": name, "kind": name[:4], "batch_size": float(self.batch[name]), **same,
                "stress_cpu": loads[name].cpu, "stress_memory": loads[name].memory,
                "cpu": loads[name].cpu, "gpu": 0.0, "memory": 0.2,
                "compute_s": 1 + draw.random(), "update_s": 1 + draw.random(),
            }
            for name in active
        ]  # fmt: skip


def run_survey(bench):
    measurements = []
    Survey(bench, MACHINES, default_axes(3), on_rows=measurements.append).run(POINTS, HELD_OUT, REPEATS)
    return json.loads(json.dumps(measurements))


def test_resumed_survey_has_the_same_rows():
    whole = run_survey(CountingBench(0))
    for cut in (1, 11, len(whole)):
        bench = CountingBench(cut)
        assert run_survey(_ResumedBench(bench, [*chain(*whole[:cut])], Path("kept"))) == whole
        assert bench.measured == len(whole)


def test_rows_of_another_survey_are_rejected():
    rows = [*chain(*run_survey(CountingBench(0)))]
    rows[0]["batch_size"] += 1
    with pytest.raises(PacelineError, match="kept belongs to a different survey"):
        run_survey(_ResumedBench(CountingBench(0), rows, Path("kept")))
