"""What the speed model says of its own errors, which promises are based on."""

from __future__ import annotations

import pytest

from paceline.control import DeadlineController, Limits, Observation, PastRun
from paceline.control._speed import SpeedModel


def trained_on(*devices: float) -> SpeedModel:
    model, done, device_s = SpeedModel(min_s=1.0), 0.0, 0.0
    for second in range(60):
        model.observe(float(second), done, device_s)
        now = devices[second * len(devices) // 60]
        done, device_s = done + 3.0 * now**0.9, device_s + now
    return model


@pytest.mark.parametrize("devices", [(2.0,), (1.0, 3.0)])
def test_speed_is_known_best_where_it_was_measured(devices: tuple[float, ...]) -> None:
    model = trained_on(*devices)
    best, sd = model.best_known
    assert min(devices) * 0.9 <= best <= max(devices) * 1.1
    assert sd == model.sd(best)
    assert sd < 0.03
    assert all(model.sd(other) > sd for other in (best / 2, best * 2))


def test_exponent_is_known_better_after_training_on_several_numbers_of_devices() -> None:
    assert trained_on(1.0, 3.0).exponent_sd < trained_on(2.0).exponent_sd / 2


def test_published_work_has_the_errors_of_the_model() -> None:
    past = PastRun(600, startup_s=1.0, tail_s=0.5, devices=2.0, batches_per_s=6.0, exponent=0.9, pauses_s=0.0)
    controller = DeadlineController(Limits(0.1, 8.0), 100.0, past=past)
    controller.start(0.0)
    for second in range(2, 30):
        seen = Observation(float(second), 6 * (second - 1), 600, done_s=float(second), allocated_devices=2.0, busy=1.0)
        remaining = controller.step(seen).remaining
    assert remaining is not None
    before = past.remaining()
    assert before is not None
    assert before.sds_on([2.0]) == (0.1,)
    on_two, on_eight = remaining.sds_on([2.0, 8.0])
    assert on_two < 0.05, "measured"
    assert on_eight > 2 * on_two, "the exponent is only known from the earlier run"
