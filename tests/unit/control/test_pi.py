"""The PI controller implements equations (1) to (5) of DECOR-NN and always respects its limits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.control import Gains, Limits, Observation, PaperController, PIController
from paceline.errors import InvalidInputError

percents = st.floats(0, 200)


@given(st.lists(st.tuples(percents, percents), min_size=1, max_size=30), st.floats(0.01, 2), st.floats(0.01, 0.99))
def test_output_within_limits_follows_equations_4_and_5(steps, gain, eta):
    limits = Limits(0.0, 1e6, 0.05)
    controller = PIController(
        limits, Gains(gain, eta), integral=1e5
    )  # the output is far from both limits, so there is no anti-windup
    integral, error_before = 1e5, 0.0
    for setpoint, progress in steps:
        error = setpoint - progress
        integral += eta * error_before
        devices = gain * integral + gain * error
        expected = max(0.0, min(1e6, 0.05 * math.ceil(devices / 0.05)))
        assert controller.step(setpoint, progress) == pytest.approx(expected, abs=0.05 + 1e-6)
        assert controller.integral == pytest.approx(integral)
        error_before = error


@given(
    st.lists(st.tuples(percents, percents, st.booleans(), st.none() | st.floats(0.01, 9)), max_size=40),
    st.sampled_from([(0.1, 2.0, 0.05), (0.25, 7.3, 0.05), (1, 8, 1), (0, 4, 1)]),
)
def test_output_respects_limits_quantum_and_ceiling(steps, bounds):
    limits = Limits(*bounds)
    controller = PIController(limits, Gains(0.7, 0.2))
    for setpoint, progress, pending, ceiling in steps:
        devices_before, integral_before = controller.devices, controller.integral
        devices = controller.step(setpoint, progress, pending=pending, ceiling=ceiling)
        if pending and devices_before is not None:
            assert controller.integral == integral_before
            assert (devices == devices_before) or (ceiling is not None and devices <= ceiling < devices_before)
            assert ceiling is None or devices <= ceiling
            continue
        assert devices <= limits.max_devices
        if ceiling is None:
            assert devices >= limits.min_devices
        else:
            assert devices <= max(ceiling, 0)
        steps_taken = devices / limits.quantum
        assert devices in (limits.min_devices, limits.max_devices) or steps_taken == pytest.approx(round(steps_taken))


def test_lower_ceiling_applies_while_an_allocation_is_pending():
    controller = PIController(Limits(0.1, 4.0), Gains(1.0, 0.3))
    assert controller.step(50, 0) == 4.0
    assert controller.step(51, 0, pending=True, ceiling=0.5) == 0.5
    assert controller.step(52, 0, pending=True) == 4.0


def test_integral_does_not_wind_up_at_a_limit():
    controller = PIController(Limits(0.1, 2.0), Gains(1.0, 0.3))
    for _ in range(1000):
        assert controller.step(50, 10) == 2.0
    assert controller.step(50, 51) < 2.0  # progress beyond the setpoint moves the output away from the limit


def test_new_gains_do_not_change_the_output_abruptly():
    controller = PIController(Limits(0.1, 8.0), Gains(0.5, 0.1))
    controller.set_output(3.0)
    assert controller.step(10, 10) == 3.0
    controller.retune(Gains(2.0, 0.05))
    assert controller.step(10, 10) == 3.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Limits(3, 2), "min_devices: got 3, expected at most max_devices = 2"),
        (lambda: Limits(-1, 2), "min_devices: got -1, expected a number of at least 0"),
        (lambda: Limits(0, 0), "max_devices: got 0, expected a number greater than 0"),
        (lambda: Limits(0, math.nan), "max_devices: got nan, expected a number greater than 0"),
        (lambda: Limits(0, 2, quantum=0), "quantum: got 0, expected a number greater than 0"),
        (lambda: Gains(0, 0.1), "gain: got 0"),
        (lambda: Gains(-1, 0.5), "gain: got -1"),
        (lambda: Gains(1, 0), "integral_weight: got 0"),
        (lambda: Gains(1, 1), "integral_weight: got 1"),
    ],
)
def test_invalid_limits_and_gains_are_rejected(make, message):
    with pytest.raises(InvalidInputError, match="^" + message):
        make()


def test_paper_controller_jumps_to_the_setpoint_of_a_new_deadline():
    controller = PaperController(Limits(0.0, 8.0), 100.0, gains=Gains(0.5, 0.1))
    assert controller.start(0.0) == 0.0
    assert controller.step(Observation(10.0, 6, 100, allocated_devices=1.0)).devices == 2.0  # error: 10 % - 6 %
    controller.move_deadline(10.0, 50.0)
    decision = controller.step(Observation(11.0, 8, 100, allocated_devices=2.0))
    assert decision.setpoint_pct == pytest.approx(22.0)  # 11 s of 50 s
    assert decision.devices == pytest.approx(0.5 * (0.1 * 4 + 14), abs=0.05)


@pytest.mark.parametrize("name", ["integral", "last_error_pct", "gain", "integral_weight"])
@pytest.mark.parametrize("value", ["0.1", None, [], 10**400])
def test_damaged_state_is_not_restored(name, value):
    controller = PIController(Limits(0.1, 2.0), Gains(1.0, 0.3))
    with pytest.raises(ValueError, match="expected a number"):
        controller.restore({**controller.state(), name: value})
