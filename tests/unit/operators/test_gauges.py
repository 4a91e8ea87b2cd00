"""The gauges of a task are closed at the end of a measurement, and at once when the task is stopped."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from paceline.errors import TaskStoppedError
from paceline.operators._gauges import Gauges


def test_gauge_is_closed_after_its_measurement_also_if_it_fails() -> None:
    gauge = Mock()
    gauge.read.side_effect = InterruptedError

    def measure() -> None:
        with Gauges().opened(lambda: gauge) as opened:
            gauge.close.assert_not_called()
            opened.read()

    with pytest.raises(InterruptedError):
        measure()
    gauge.close.assert_called_once()


def test_stopped_task_closes_its_gauges_and_opens_no_more() -> None:
    gauges, first, late = Gauges(), Mock(), Mock()
    with gauges.opened(lambda: first):
        gauges.stop()
        first.close.assert_called_once()
    with pytest.raises(TaskStoppedError), gauges.opened(lambda: late):
        pytest.fail("a stopped task measures nothing more")
    late.close.assert_called_once()
