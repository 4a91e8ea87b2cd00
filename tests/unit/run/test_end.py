"""How a job has ended: its outcome, its errors and what they advise, and the time of its end."""

from __future__ import annotations

import pytest

from paceline.errors import JobLostError, TrainingFailedError, UnsuitableCodeError
from paceline.run import MemoryState
from paceline.run.outcome import WITHOUT_STEPS


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [("kill", TrainingFailedError, "exit code 137"), ("remove_from_engine", JobLostError, "was removed while it ran")],
)
def test_killed_or_removed_job_fails_the_run_without_a_restart(make_job, run, fault, error, message):
    job = make_job(core_s=60)
    job.actions = [(20, getattr(job, fault))]
    with pytest.raises(error, match=message):
        run(job, 90)
    assert job.restarted == 0


@pytest.mark.parametrize(("error_s", "set_to_s"), [(30.0, 30.0), (-30.0, -30.0), (0.0, -3600.0), (0.0, 3600.0)])
def test_wrong_or_changing_engine_clock_does_not_affect_control(make_job, run, error_s, set_to_s):
    expected, _ = run(make_job(core_s=60), 80)
    job = make_job(core_s=60)
    job.clock_error_s = error_s
    job.actions = [(30.1, lambda: setattr(job, "clock_error_s", set_to_s))]
    outcome, exchange = run(job, 80 + expected.finished_s)
    began_s = exchange.samples[0]["t_s"]
    assert outcome.met
    assert outcome.finished_s - began_s > 60
    assert outcome.mean_devices == pytest.approx(outcome.device_seconds / (outcome.finished_s - began_s), rel=0.01)
    assert outcome.learned["tail_s"] == pytest.approx(expected.learned["tail_s"], abs=0.3)


@pytest.mark.parametrize("set_to_s", [-3600.0, 3600.0])
def test_engine_clock_set_after_the_last_line_does_not_change_the_end_time(make_job, run, set_to_s):
    expected, exchange = run(make_job(core_s=60), 80)
    tail_s, took_s = expected.learned["tail_s"], expected.finished_s - exchange.samples[0]["t_s"]
    job = make_job(core_s=60)
    job.actions = [(took_s - tail_s / 2, lambda: setattr(job, "clock_error_s", set_to_s))]
    outcome, exchange = run(job, 80 + expected.finished_s)
    assert outcome.finished_s - exchange.samples[0]["t_s"] == pytest.approx(took_s, abs=2.0)
    assert outcome.mean_devices == pytest.approx(expected.mean_devices, rel=0.1)


@pytest.mark.parametrize(("deadline_s", "met"), [(300, True), (90, False)])
def test_job_without_steps_ends_well(make_job, run, caplog, deadline_s, met):
    """A single call of `fit` has no steps: exit code 0 is a result, also after the deadline."""
    job = make_job(core_s=60, start_up_s=1000)
    job.actions = [(200, lambda: job.kill(exit_code=0))]
    outcome, exchange = run(job, deadline_s)
    assert (outcome.met, outcome.learned, outcome.loss, outcome.metrics) == (met, None, None, {})
    assert exchange.samples[-1]["state"] == "finished"
    assert exchange.samples[-1]["progress_pct"] == 100.0
    seen = ("reported no batch", "reported no progress")
    messages = [record.message for record in caplog.records if any(text in record.message for text in seen)]
    assert messages[-1:] == [WITHOUT_STEPS]
    assert len(messages) == (1 if met else 2)  # once after the deadline, once at the end


def test_job_that_needs_progress_fails_without_steps(make_job, run):
    """A worker of a fleet that has not joined the training does not have its model."""
    job = make_job(core_s=60, start_up_s=1000)
    job.actions = [(5, lambda: job.kill(exit_code=0))]
    with pytest.raises(TrainingFailedError, match="script: reported no progress at all, expected a loop over"):
        run(job, 300, needs_progress=True)


MISSING = "ModuleNotFoundError: No module named 'layers.dense'"


@pytest.mark.parametrize(
    ("lines", "exit_code", "advice"),
    [
        ([MISSING], 1, "module layers is not in the job. If it is your own, add files={'layers.py': 'layers.py'}"),
        (["ImportError: cannot import name 'dense' from 'layers' (layers.py)"], 1, "the code cannot be loaded"),
        (["    for batch in", "IndentationError: unexpected indent"], 1, "the code cannot be loaded"),
        (["FileNotFoundError: [Errno 2] No such file or directory: 'rows.csv'"], 1, "the file is not in the job"),
        (["python: can't open file '/job/trian.py': [Errno 2] No such file or directory"], 2, "the file is not in the"),
        (["usage: train.py [-h]", "train.py: error: unrecognized arguments: --epoch"], 2, "rejects its arguments"),
        ([MISSING, "worker 3 has ended"], 1, None),
        (["train.py: error: the database is down"], 1, None),
        (["RuntimeError: CUDA error: FileNotFoundError"], 1, None),
        # These may be faults of a machine or a mount, or not the reason.
        (["ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"], 1, None),
        (["FileNotFoundError: [Errno 2] No such file or directory: '/mnt/rows.csv'"], 1, None),
        (["FileNotFoundError: the hub does not respond"], 1, None),
        ([MISSING], 137, None),
    ],
)
def test_script_that_would_end_in_the_same_way_is_not_tried_again(make_job, run, lines, exit_code, advice):
    job = make_job(core_s=60, start_up_s=1000)
    job.actions = [(20, lambda: (job.append_lines(*lines), job.kill(exit_code=exit_code)))]
    with pytest.raises(TrainingFailedError, match=f"ended with exit code {exit_code}") as raised:
        run(job, 300)
    assert isinstance(raised.value, UnsuitableCodeError) is (advice is not None)
    assert advice is None or (f"No further try follows: {advice}" in str(raised.value) or advice in str(raised.value))


def test_script_that_ends_after_minutes_is_tried_again(make_job, run):
    job = make_job(core_s=60, start_up_s=1000)
    job.actions = [(200, lambda: (job.append_lines(MISSING), job.kill(exit_code=1)))]
    with pytest.raises(TrainingFailedError) as raised:
        run(job, 300)
    assert not isinstance(raised.value, UnsuitableCodeError)


def test_script_that_has_trained_is_tried_again_in_any_case(make_job, run):
    job = make_job(core_s=60, start_up_s=1)
    job.actions = [(20, lambda: (job.append_lines(MISSING), job.kill(exit_code=1)))]
    with pytest.raises(TrainingFailedError) as raised:
        run(job, 300)
    assert type(raised.value) is TrainingFailedError, "another try resumes from the checkpoint"


def test_failed_job_without_steps_fails(make_job, run):
    job = make_job(core_s=60, start_up_s=1000)
    job.actions = [(5, lambda: job.kill(exit_code=1))]
    with pytest.raises(TrainingFailedError, match="ended with exit code 1"):
        run(job, 90)


def test_error_for_zero_batches_explains_the_cause(make_job, run):
    job = make_job(core_s=60, start_up_s=1000)
    job.append_lines('@paceline {"done": 0, "total": 0}')
    job.actions = [(5, lambda: job.kill(exit_code=0))]
    with pytest.raises(TrainingFailedError, match="total: got 0, expected a whole number of at least 1"):
        run(job, 90)


def test_last_sample_has_the_mean_and_the_device_seconds_of_the_outcome(make_job, run):
    outcome, exchange = run(make_job(core_s=60), 80)
    last = exchange.samples[-1]
    assert last["mean_devices"] == outcome.mean_devices > 0
    assert last["device_seconds"] == outcome.device_seconds > 0


def test_last_sample_of_a_failed_job_has_its_device_seconds(make_job, run):
    job, state = make_job(core_s=60), MemoryState()
    job.actions = [(20, job.kill)]
    with pytest.raises(TrainingFailedError):
        run(job, 90, state=state)
    assert state["pace"]["mean_devices"] > 0
    assert state["pace"]["device_seconds"] == pytest.approx(20 * state["pace"]["mean_devices"], rel=0.1)
