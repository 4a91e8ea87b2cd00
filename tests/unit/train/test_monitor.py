"""The accuracy monitor: how many epochs a training still needs, and when it has learned enough."""

import math
import random

import pytest
import torch

from paceline.train import Converged, checkpoint, report, track
from paceline.train._loop import Loop
from paceline.train._monitor import Monitor, fit


def learn(curve, until, most=100, noise=0.0, seed=0):
    """Feed a monitor a value after each epoch; returns it when it has enough, or at the end."""
    draw, monitor = random.Random(seed), Monitor(until, most)
    for epoch in range(1, most + 1):
        monitor.add(epoch, curve(epoch) + draw.gauss(0, noise))
        if monitor.enough:
            break
    return monitor


def hyperbola(epoch):
    return 0.93 - 0.5 / (0.8 * epoch + 0.7)


def needed(curve, gain):
    return next(epoch for epoch in range(1, 10_000) if curve(epoch + 1) - curve(epoch) < gain)


@pytest.mark.parametrize(
    ("until", "truth"),
    [(Converged("accuracy", gain=gain), needed(hyperbola, gain)) for gain in (0.01, 0.001, 0.0001)]
    + [(Converged("accuracy", gain=1e-9, target=0.9), next(k for k in range(1, 500) if hyperbola(k) >= 0.9))],
)
def test_the_number_of_epochs_is_known_long_before_they_are_done(until, truth):
    monitor = Monitor(until, most=500)
    for epoch in range(1, 7):
        monitor.add(epoch, hyperbola(epoch))
    assert monitor.epochs == pytest.approx(truth, rel=0.1, abs=1)


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_end_a_training_that_still_learns(seed):
    truth = needed(hyperbola, 0.001)
    monitor = learn(hyperbola, Converged("accuracy", gain=0.001), noise=0.002, seed=seed)
    assert truth - 3 <= len(monitor.points) <= truth + 6


@pytest.mark.parametrize("seed", range(5))
def test_another_kind_of_curve_ends_once_it_is_flat(seed):
    monitor = learn(
        lambda epoch: 0.93 - 0.6 * math.exp(-epoch / 4), Converged("accuracy", gain=0.001), noise=0.0005, seed=seed
    )
    assert 20 <= len(monitor.points) <= 40
    assert monitor.points[-1][1] > 0.925


@pytest.mark.parametrize("curve", [lambda epoch: 0.5, lambda epoch: 1 / epoch], ids=["flat", "falling"])
def test_what_does_not_learn_at_all_is_given_up(curve):
    monitor = learn(curve, Converged("accuracy"))
    assert len(monitor.points) == 7
    assert monitor.enough == "accuracy has not gained 0.001 in 6 epochs"


def test_a_loss_goes_the_other_way():
    down = learn(lambda epoch: 1 - hyperbola(epoch), Converged("loss", gain=0.001, better="lower"))
    up = learn(hyperbola, Converged("accuracy", gain=0.001))
    assert len(down.points) == len(up.points)


def test_a_target_that_is_reached_is_enough_and_one_out_of_reach_is_not():
    reached = learn(hyperbola, Converged("accuracy", gain=1e-9, target=0.85))
    assert reached.points[-1][1] >= 0.85 > reached.points[-2][1]
    assert "good enough" in reached.enough
    assert learn(hyperbola, Converged("accuracy", gain=1e-9, target=0.95), most=30).enough is None


def test_values_that_are_no_numbers_tell_nothing():
    monitor = Monitor(Converged("accuracy"), most=10)
    monitor.add(1, math.nan)
    monitor.add(2, math.inf)
    assert (monitor.points, monitor.epochs, monitor.enough) == ([], 10, None)


STANDS_STILL_FAR_FROM_ZERO = [(1, 1e5), (2, 1e5 + 1.5e-11), (3, 1e5 + 3e-11), (4, 1e5 + 3e-11)]


@pytest.mark.parametrize("points", [[], [(1, 0.5)] * 3, [(k, 0.5) for k in range(1, 9)], STANDS_STILL_FAR_FROM_ZERO])
def test_no_curve_goes_through_too_little(points):
    assert fit(points) is None


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
def test_what_makes_no_sense_is_named(field, values):
    with pytest.raises(ValueError, match=f"^{field}: got"):
        Converged(**values)
    with pytest.raises(ValueError, match=r"^until: got"):
        track([1], until="accuracy")


def run(recorder, epochs=50, until=None, report_in=lambda epoch: True, **options):
    loop = Loop(range(10), epochs=epochs, until=until or Converged("accuracy", 0.002), display=recorder, **options)
    for _ in loop:
        if loop.epoch_end and report_in(loop.epoch):
            report(accuracy=hyperbola(loop.epoch + 1))
    return loop


def test_a_loop_ends_with_the_last_epoch_that_was_worth_it(recorder):
    recorder.interval_s = 0.0
    loop = run(recorder)
    truth = needed(hyperbola, 0.002)
    assert abs(loop.epochs - truth) <= 3
    assert (loop.done, loop.total) == (10 * loop.epochs, 10 * loop.epochs)
    # The total is known long before: that is what lets a deadline controller give devices back.
    half_way = next(one for one in recorder.shown if one.done >= 5 * truth)
    assert half_way.total == pytest.approx(10 * truth, rel=0.1)
    assert recorder.shown[-1].event == "finish"


def test_a_loop_without_a_length_ends_as_soon(recorder):
    assert run(recorder, total=500).done == run(recorder).done


def test_a_metric_that_is_reported_now_and_then_is_followed_then(recorder, capsys):
    loop = run(recorder, report_in=lambda epoch: epoch % 3 == 2)
    assert abs(loop.epochs - needed(hyperbola, 0.002)) <= 4
    assert "not reported" in capsys.readouterr().err


def test_a_metric_that_never_comes_ends_nothing(recorder, capsys):
    assert run(recorder, epochs=5, report_in=lambda epoch: False).done == 50
    assert capsys.readouterr().err.count("accuracy was not reported in two epochs") == 1


def test_a_restarted_training_knows_what_the_metric_was(tmp_path, new_life):
    def live(die_after=None):
        new_life()
        checkpoint(model=torch.nn.Linear(1, 1), path=tmp_path, every_s=0)
        loop = track(range(10), epochs=50, until=Converged("accuracy", 0.002))
        for _ in loop:
            if loop.done == die_after:
                break
            if loop.epoch_end:
                report(accuracy=hyperbola(loop.epoch + 1))
        return loop

    uninterrupted = run(None).epochs
    for die_after in (50, 55, 95):  # at the end of an epoch, and in the middle of one
        live(die_after)
    ended = live()
    assert (ended.epochs, ended.done) == (uninterrupted, 10 * uninterrupted)
    assert [epochs for epochs, _ in ended.monitor.points] == list(range(1, uninterrupted + 1))
    again = live()
    assert (again.epochs, again.done) == (uninterrupted, 10 * uninterrupted)  # there is nothing left to do


def test_a_target_that_was_reached_stays_reached_after_a_restart():
    monitor = Monitor(Converged("accuracy", target=0.9), most=50)
    for epochs, value in ((1, 0.5), (2, 0.91), (3, 0.88)):
        monitor.add(epochs, value)
    again = Monitor(monitor.until, most=50)
    again.restore(monitor.points)
    assert (again.enough, again.epochs) == (monitor.enough, 2)
