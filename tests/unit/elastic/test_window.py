"""When enough has been seen of a configuration to decide by."""

from __future__ import annotations

import pytest

from paceline.elastic import Options, TeamSample
from paceline.elastic.window import Window

OPTIONS = Options()


def first_complete(loads: list[float]) -> int:
    """After so many samples it can be said that no network is the bottleneck."""
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
        pytest.param([0.7, 0.88], OPTIONS.network_samples, id="below, and perhaps above at times"),
        pytest.param([0.86], OPTIONS.network_samples, id="just below"),
    ],
)
def test_a_link_that_stays_below_its_limit_needs_fewer_samples_than_one_near_to_it(
    loads: list[float], samples: int
) -> None:
    assert first_complete(loads) == samples


@pytest.mark.parametrize(("load", "busy"), [(0.6, False), (0.7, True)])
def test_a_link_is_busy_before_it_is_full(load: float, busy: bool) -> None:
    window = Window(OPTIONS)
    window.add(TeamSample(5.0, {"ps-0": 1.0}, {"ps-0": load, "ps-1": 0.1}))
    assert window.busy is busy
    assert not window.saturated("ps-0")


@pytest.mark.parametrize(
    ("speeds", "samples"),
    [
        pytest.param([10.0, 10.0], OPTIONS.stable_samples, id="each like the others"),
        pytest.param([8.0, 12.0], 2 * OPTIONS.stable_samples, id="up and down: two and two are alike"),
        pytest.param([1.1**number for number in range(60)], None, id="ever faster"),
    ],
)
def test_samples_that_vary_are_taken_together_until_they_are_alike_but_not_those_that_grow(
    speeds: list[float], samples: int | None
) -> None:
    window = Window(OPTIONS)
    stable = []
    for number in range(60):
        window.add(TeamSample(speeds[number % len(speeds)], {"ps-0": 1.0}, {"ps-0": 0.1}))
        stable += [number + 1] if window.stable else []
    assert (stable[0] if stable else None) == samples
    assert samples is None or window.speed == pytest.approx(10.0)
