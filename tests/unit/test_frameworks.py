"""Tests of the benchmark of libraries: its sizes, its simulated trainings and its table."""

from __future__ import annotations

import pytest
from benchmarks.frameworks import __main__ as command
from benchmarks.frameworks.cases import CASES, EPOCHS, plant, predicted_s, step_count
from benchmarks.frameworks.report import row, table, thread_summary
from benchmarks.frameworks.simulated import simulate
from benchmarks.frameworks.train import TRAININGS

from paceline.control import PastRun

PROBE = PastRun(60, startup_s=3.0, tail_s=1.0, devices=2.0, batches_per_s=20.0, exponent=1.0, pauses_s=0.4, epochs=1)


def test_each_library_has_a_training() -> None:
    assert set(TRAININGS) == set(CASES)


@pytest.mark.parametrize("shortest_s", [20.0, 90.0])
def test_number_of_steps_fits_the_shortest_duration(shortest_s) -> None:
    steps = step_count(shortest_s, PROBE)
    assert steps % EPOCHS == 0
    assert shortest_s - EPOCHS / 20.0 < predicted_s(steps, PROBE) <= shortest_s


@pytest.mark.parametrize("library", CASES)
def test_simulated_training_ends_at_its_deadline(library) -> None:
    assert plant(CASES[library], 2.0, 40.0).shortest_s(2.0) == pytest.approx(40.0, abs=1.5)
    assert abs(simulate(library, 60.0, 1.5)["largest_error_pct"]) < 2.0


def test_table_shows_whether_the_threads_follow_the_allocation() -> None:
    run = {
        "steps": 100,
        "deadline_s": 40.0,
        "finished_s": 40.2,
        "shortest_s": 25.0,
        "error_pct": 0.5,
        "errors_pct": [9.0, 0.5],
        "mean_devices": 1.0,
        "core_seconds": 40.2,
        "cpu_seconds": 38.0,
        "metrics": {"native_threads": 4.0},
        "other_cores": 0.1,
        "resizes": 9,
        "mechanism": "cgroup",
        "threads": [(10, 2, 1.2), (20, 2, 1.0), (30, 1, 1.0), (40, 1, 1.3)],
        "samples": [[second, 0.0, 0.0, 2.0] for second in range(40)],
    }
    simulated = {"mean_abs_error_pct": 0.2, "largest_error_pct": -0.3}
    assert thread_summary(run["threads"]) == {"least": 1, "most": 2, "fitting": 0.75}
    lines = table([row(library, 2.0, run, simulated) for library in ("xgboost", "sklearn")]).splitlines()
    assert lines[2] == (
        "| XGBoost | 100 | 40.0 s | 40.2 s | +0.50 %* (before: +9.00 %) "
        "| 1.00 | 1 to 2 (75 % fit) | 40.2, 80 % | 0.20 %, -0.30 % |"
    )
    assert "| 4, fixed |" in lines[3]


def test_unknown_library_is_rejected(capsys) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "xgboost,spark"])
    assert "got 'spark', expected some of xgboost," in capsys.readouterr().err
