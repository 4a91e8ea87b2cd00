"""The window of samples is complete when the samples suffice for a scaling decision."""

from __future__ import annotations

import pytest

from paceline.elastic import Team, TeamSample
from paceline.elastic.window import Window

OPTIONS = Team()


def samples_until_complete(loads: list[float]) -> int:
    """Return the number of samples after which the window is complete."""
    window = Window(OPTIONS)
    for number in range(1, 100):
        window.add(TeamSample(5.0, {"ps-0": 1.0}, {"ps-0": loads[number % len(loads)], "ps-1": 0.1}))
        if window.complete:
            return number
    raise AssertionError("never")


@pytest.mark.parametrize(
    ("loads", "samples"),
    [
        pytest.param([0.2], OPTIONS.stable_samples, id="far below"),
        pytest.param([0.8], OPTIONS.stable_samples, id="steadily below"),
        pytest.param([0.7, 0.88], OPTIONS.network_samples, id="below, sometimes close"),
        pytest.param([0.86], OPTIONS.network_samples, id="just below"),
    ],
)
def test_link_near_its_limit_needs_more_samples(loads: list[float], samples: int) -> None:
    assert samples_until_complete(loads) == samples


@pytest.mark.parametrize(("load", "busy"), [(0.6, False), (0.7, True)])
def test_link_is_busy_before_it_is_saturated(load: float, busy: bool) -> None:
    window = Window(OPTIONS)
    window.add(TeamSample(5.0, {"ps-0": 1.0}, {"ps-0": load, "ps-1": 0.1}))
    assert window.busy is busy
    assert not window.saturated("ps-0")


@pytest.mark.parametrize(
    ("speeds", "samples"),
    [
        pytest.param([10.0, 10.0], OPTIONS.stable_samples, id="constant"),
        pytest.param([8.0, 12.0], 2 * OPTIONS.stable_samples, id="alternating: means of pairs are constant"),
        pytest.param([1.1**number for number in range(60)], None, id="growing"),
    ],
)
def test_varying_samples_are_averaged_until_stable(speeds: list[float], samples: int | None) -> None:
    window = Window(OPTIONS)
    stable = []
    for number in range(60):
        window.add(TeamSample(speeds[number % len(speeds)], {"ps-0": 1.0}, {"ps-0": 0.1}))
        stable += [number + 1] if window.stable else []
    assert (stable[0] if stable else None) == samples
    assert samples is None or window.speed == pytest.approx(10.0)
