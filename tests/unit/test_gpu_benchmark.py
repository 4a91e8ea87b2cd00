"""Tests of the benchmark of training on a GPU, whose script also trains on the CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.frameworks import run as trainings
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import shares

from paceline.errors import PacelineError
from paceline.runtime import ProcessRuntime

LEARNED = {
    "batches": 2500, "startup_s": 3.0, "tail_s": 1.0, "pauses_s": 0.0, "devices": 2.0, "batches_per_s": 300.0,
    "exponent": 1.0,
}  # fmt: skip


@pytest.fixture
def trainer(tmp_path):
    return trainings.Trainer(tmp_path)


@pytest.mark.parametrize("fast_enough", [100, 2_500, 62_500])
def test_calibration_takes_more_steps_until_the_speed_is_known(trainer, monkeypatch, fast_enough):
    def train(library: str, steps: int, cores: float) -> dict[str, Any]:
        tried.append(steps)
        return {"learned": LEARNED if steps >= fast_enough else None, "finished_s": 12.0}

    tried: list[int] = []
    monkeypatch.setattr(trainer, "train_constant", train)
    assert trainer._calibrate("table").batches_per_s == fast_enough / 8.0
    assert tried[-1] == fast_enough


def test_speed_that_no_number_of_steps_shows_is_an_error(trainer, monkeypatch):
    monkeypatch.setattr(trainer, "train_constant", lambda *_: {"learned": None})
    with pytest.raises(PacelineError, match="table: 62500 steps were too few to measure the speed"):
        trainer._calibrate("table")


def test_every_model_is_trained_without_paceline_under_it_and_by_a_deadline(monkeypatch, capsys):
    trained = []
    run = {"deadline_s": 60.0, "finished_s": 59.9, "errors_pct": [-0.17], "mean_devices": 0.4, "steps": 900}

    def train_by(deadline_s: float, factor: float, library: str) -> dict[str, Any]:
        trained.append((deadline_s, factor, library))
        return {**run, "mechanism": "cgroup"}

    monkeypatch.setattr(command, "Trainer", lambda *_, **__: SimpleNamespace(train_by=train_by))
    monkeypatch.setattr(command, "measure_epochs", lambda model, *, bare: ([2.0, 4.0 if bare else 2.0], 0.1))
    command.main(["--rounds", "1"])
    assert trained == [(45.0, 1.5, "resnet50"), (45.0, 1.5, "table")]
    assert "table: 133.3 batches/s without Paceline; epochs under Paceline take 0.667 times" in capsys.readouterr().out


def test_duration_of_each_epoch_but_the_first_is_measured(monkeypatch):
    monkeypatch.setitem(command.STEPS, "table", 6)
    monkeypatch.setattr(command, "EPOCHS", 3)
    for bare in (True, False):
        epochs_s, _ = command.measure_epochs("table", bare=bare)
        assert len(epochs_s) == 2
        assert min(epochs_s) > 0


def test_jobs_that_share_a_gpu_are_measured_at_the_same_time(tmp_path, monkeypatch):
    monkeypatch.setattr(shares, "WARM_UP_S", 0.0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidia0").touch()
    script = tmp_path / "train.py"
    script.write_text(
        "import time\nfrom paceline.train import track\nfor _ in track(range(10**6)): time.sleep(0.001)\n"
    )
    runtime = ProcessRuntime(tmp_path / "root", dev=tmp_path)
    speeds = shares.train_together(runtime, "table", (0.5, 0.25), 1.5, {"train.py": script})
    assert len(speeds) == 2
    assert min(speeds) > 0


def test_job_that_ends_early_ends_the_benchmark(tmp_path):
    (tmp_path / "nvidia0").touch()
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(3)")
    runtime = ProcessRuntime(tmp_path / "root", dev=tmp_path)
    with pytest.raises(SystemExit, match=r"a job has ended: .*exit_code=3"):
        shares.train_together(runtime, "table", (0.5,), 1.0, {"train.py": script})
