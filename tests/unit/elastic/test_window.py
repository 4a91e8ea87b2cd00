"""When enough has been seen of a configuration to decide by."""

from __future__ import annotations

import pytest

from paceline.elastic import Options, Sample
from paceline.elastic.window import Window

OPTIONS = Options()


def first_complete(loads: list[float]) -> int:
    """After so many samples it can be said that no network is the bottleneck."""
    window = Window(OPTIONS)
    for number in range(1, 100):
        window.add(Sample(5.0, {"ps-0": 1.0}, {"ps-0": loads[number % len(loads)], "ps-1": 0.1}))
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
    window.add(Sample(5.0, {"ps-0": 1.0}, {"ps-0": load, "ps-1": 0.1}))
    assert window.busy is busy
    assert not window.saturated("ps-0")
