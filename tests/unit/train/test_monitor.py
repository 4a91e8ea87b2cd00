"""The accuracy monitor forecasts how many epochs a job still needs, and ends the job when accuracy levels off."""

import math
import random

import pytest
import torch

from paceline.train import Converged, Loop, checkpoint, report, track
from paceline.train.pacing import monitor as monitor_module
from paceline.train.pacing.monitor import Monitor, fit_curve


def run_monitor(curve, until, max_epochs=100, noise=0.0, seed=0):
    """Add one value per epoch to a monitor until the monitor ends the job or no value is left. Return the monitor."""
    draw, monitor = random.Random(seed), Monitor(until, max_epochs)
    for epoch in range(1, max_epochs + 1):
        monitor.add(epoch, curve(epoch) + draw.gauss(0, noise))
        if monitor.end_reason:
            break
    return monitor


def hyperbola(epoch):
    return 0.93 - 0.5 / (0.8 * epoch + 0.7)


def expected_epochs(curve, gain):
    return next(epoch for epoch in range(1, 10_000) if curve(epoch + 1) - curve(epoch) < gain)


@pytest.mark.parametrize(
    ("until", "truth"),
    [(Converged("accuracy", gain=gain), expected_epochs(hyperbola, gain)) for gain in (0.01, 0.001, 0.0001)]
    + [(Converged("accuracy", gain=1e-9, target=0.9), next(k for k in range(1, 500) if hyperbola(k) >= 0.9))],
)
def test_number_of_epochs_is_forecast_after_six_epochs(until, truth):
    monitor = Monitor(until, max_epochs=500)
    for epoch in range(1, 7):
        monitor.add(epoch, hyperbola(epoch))
    assert monitor.epochs == pytest.approx(truth, rel=0.1, abs=1)


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_end_a_job_that_improves(seed):
    truth = expected_epochs(hyperbola, 0.001)
    monitor = run_monitor(hyperbola, Converged("accuracy", gain=0.001), noise=0.002, seed=seed)
    assert truth - 3 <= len(monitor.points) <= truth + 6


@pytest.mark.parametrize("seed", range(5))
def test_exponential_curve_ends_once_it_is_flat(seed):
    monitor = run_monitor(
        lambda epoch: 0.93 - 0.6 * math.exp(-epoch / 4), Converged("accuracy", gain=0.001), noise=0.0005, seed=seed
    )
    assert 20 <= len(monitor.points) <= 40
    assert monitor.points[-1][1] > 0.925


@pytest.mark.parametrize("value", [1e80, 1e200, 1e308])
def test_diverging_loss_does_not_end_a_job_with_an_error(value):
    monitor = Monitor(Converged("loss", gain=0.1), max_epochs=100)
    for epoch in range(1, 7):
        monitor.add(epoch, value * epoch / 7)
    assert monitor.epochs == 100


@pytest.mark.parametrize("curve", [lambda epoch: 0.5, lambda epoch: 1 / epoch], ids=["flat", "falling"])
def test_job_without_improvement_is_ended(curve):
    monitor = run_monitor(curve, Converged("accuracy"))
    assert len(monitor.points) == 7
    assert monitor.end_reason == "accuracy has not gained 0.001 in 6 epochs"


def test_falling_loss_is_handled_like_rising_accuracy():
    down = run_monitor(lambda epoch: 1 - hyperbola(epoch), Converged("loss", gain=0.001, better="lower"))
    up = run_monitor(hyperbola, Converged("accuracy", gain=0.001))
    assert len(down.points) == len(up.points)


def test_job_with_a_target_ends_only_when_the_target_is_reached():
    reached = run_monitor(hyperbola, Converged("accuracy", gain=1e-9, target=0.85))
    assert reached.points[-1][1] >= 0.85 > reached.points[-2][1]
    assert "reaches the target" in reached.end_reason
    assert run_monitor(hyperbola, Converged("accuracy", gain=1e-9, target=0.95), max_epochs=30).end_reason is None


def test_non_finite_values_are_ignored():
    monitor = Monitor(Converged("accuracy"), max_epochs=10)
    monitor.add(1, math.nan)
    monitor.add(2, math.inf)
    assert (monitor.points, monitor.epochs, monitor.end_reason) == ([], 10, None)


CONSTANT_FAR_FROM_ZERO = [(1, 1e5), (2, 1e5 + 1.5e-11), (3, 1e5 + 3e-11), (4, 1e5 + 3e-11)]


@pytest.mark.parametrize("points", [[], [(1, 0.5)] * 3, [(k, 0.5) for k in range(1, 9)], CONSTANT_FAR_FROM_ZERO])
def test_fit_needs_enough_points_and_spread(points):
    assert fit_curve(points) is None


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("metric", {"metric": ""}),
        ("gain", {"metric": "a", "gain": 0}),
        ("gain", {"metric": "a", "gain": math.nan}),
        ("target", {"metric": "a", "target": math.inf}),
        ("better", {"metric": "a", "better": "bigger"}),
        ("patience", {"metric": "a", "patience": 0}),
    ],
)
def test_invalid_converged_argument_is_rejected(field, values):
    with pytest.raises(ValueError, match=f"^{field}: got"):
        Converged(**values)
    with pytest.raises(ValueError, match=r"^until: got"):
        track([1], until="accuracy")


def run_loop(recorder, epochs=50, until=None, report_in=lambda epoch: True, **options):
    loop = Loop(range(10), epochs=epochs, until=until or Converged("accuracy", 0.002), display=recorder, **options)
    for _ in loop:
        if loop.epoch_end and report_in(loop.epoch):
            report(accuracy=hyperbola(loop.epoch + 1))
    return loop


def test_loop_ends_after_the_last_epoch_with_enough_gain(recorder):
    recorder.interval_s = 0.0
    loop = run_loop(recorder)
    truth = expected_epochs(hyperbola, 0.002)
    assert abs(loop.epochs - truth) <= 3
    assert (loop.done, loop.total) == (10 * loop.epochs, 10 * loop.epochs)
    # The job forecasts the total early, so a deadline controller can release devices.
    midway = next(one for one in recorder.shown if one.done >= 5 * truth)
    assert midway.total == pytest.approx(10 * truth, rel=0.1)
    assert recorder.shown[-1].event == "finish"


def test_loop_with_a_given_total_ends_at_the_same_batch(recorder):
    assert run_loop(recorder, total=500).done == run_loop(recorder).done


def test_metric_may_be_reported_rarely(recorder, capsys):
    loop = run_loop(recorder, report_in=lambda epoch: epoch % 3 == 2)
    assert abs(loop.epochs - expected_epochs(hyperbola, 0.002)) <= 4
    assert "not reported" in capsys.readouterr().err


def test_missing_metric_does_not_end_the_loop(recorder, capsys):
    assert run_loop(recorder, epochs=5, report_in=lambda epoch: False).done == 50
    assert capsys.readouterr().err.count("no forecast, because accuracy was not reported in the first two epochs") == 1


def test_restarted_job_keeps_its_accuracy_curve(tmp_path, restart_process):
    def train_until_interrupted(interrupt_after=None):
        restart_process()
        checkpoint(model=torch.nn.Linear(1, 1), path=tmp_path, every_s=0)
        loop = track(range(10), epochs=50, until=Converged("accuracy", 0.002))
        for _ in loop:
            if loop.done == interrupt_after:
                break
            if loop.epoch_end:
                report(accuracy=hyperbola(loop.epoch + 1))
        return loop

    uninterrupted = run_loop(None).epochs
    for interrupt_after in (50, 55, 95):  # interruptions at the end and in the middle of an epoch
        train_until_interrupted(interrupt_after)
    ended = train_until_interrupted()
    assert (ended.epochs, ended.done) == (uninterrupted, 10 * uninterrupted)
    assert [epochs for epochs, _ in ended.monitor.points] == list(range(1, uninterrupted + 1))
    restarted = train_until_interrupted()
    assert (restarted.epochs, restarted.done) == (
        uninterrupted,
        10 * uninterrupted,
    )  # all epochs were complete before the restart


def test_reached_target_stays_reached_after_a_restart():
    monitor = Monitor(Converged("accuracy", target=0.9), max_epochs=50)
    for epochs, value in ((1, 0.5), (2, 0.91), (3, 0.88)):
        monitor.add(epochs, value)
    restarted = Monitor(monitor.until, max_epochs=50)
    restarted.restore(monitor.points)
    assert (restarted.end_reason, restarted.epochs) == (monitor.end_reason, 2)


@pytest.fixture
def fitted(monkeypatch):
    """Return the numbers of points to which curves have been fitted."""
    numbers = []

    def fit(points):
        numbers.append(len(points))
        return fit_curve(points)

    monkeypatch.setattr(monitor_module, "fit_curve", fit)
    return numbers


def slow_hyperbola(epoch):
    return 0.93 - 0.5 / (0.01 * epoch + 0.7)


def test_restart_fits_the_curve_once(fitted):
    monitor = Monitor(Converged("accuracy", gain=1e-5), max_epochs=10_000)
    for epoch in range(1, 51):
        monitor.add(epoch, slow_hyperbola(epoch))
    assert len(fitted) == 50
    restarted = Monitor(monitor.until, max_epochs=10_000)
    restarted.restore(monitor.points)
    assert len(fitted) == 51
    assert (restarted.points, restarted.epochs) == (monitor.points, monitor.epochs)


def test_restart_without_points_fits_no_curve(fitted):
    monitor = Monitor(Converged("accuracy"), max_epochs=10)
    monitor.restore([])
    assert (monitor.epochs, fitted) == (10, [])


@pytest.mark.parametrize("seed", range(3))
def test_forecast_of_a_long_job_is_fitted_to_some_of_its_points(fitted, seed):
    draw, until = random.Random(seed), Converged("accuracy", gain=1e-5, patience=100)
    monitor = Monitor(until, max_epochs=10_000)
    monitor.restore([(epoch, slow_hyperbola(epoch) + draw.gauss(0, 0.002)) for epoch in range(1, 1001)])
    monitor.add(1001, slow_hyperbola(1001))
    assert max(fitted) <= 200
    assert monitor.epochs == pytest.approx(expected_epochs(slow_hyperbola, until.gain), rel=0.1)
