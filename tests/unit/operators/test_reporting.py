"""Metrics and callbacks of a training that runs."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.samples import a_sample

from paceline.operators import LogNotifier
from paceline.operators._reporting import SampleReporter
from paceline.run import MemoryState

FIGURES = {"forecast_s": 90.0, "setpoint_pct": 52.5, "devices": 1.5, "step_ms": 0.4}
SAMPLE = a_sample(**FIGURES)
HOPELESS = a_sample(feasible=False, earliest_s=130.0)
CONTEXT: Any = {"ti": SimpleNamespace(dag_id="retrain", task_id="train", map_index=-1)}


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A StatsD server that Airflow's metrics of this process go to."""
    from airflow.sdk._shared.observability.metrics import stats
    from airflow.sdk._shared.observability.metrics.statsd_logger import get_statsd_logger
    from statsd import StatsClient

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        address: Any = {"host": "127.0.0.1", "port": server.getsockname()[1], "prefix": "airflow"}
        tagged = {"influxdb_tags_enabled": True, "statsd_influxdb_enabled": True}
        monkeypatch.setattr(stats, "_backend", get_statsd_logger(stats_class=StatsClient, **address, **tagged))
        yield server


def heard(statsd: socket.socket, number: int) -> list[str]:
    return [statsd.recv(1000).decode() for _ in range(number)]


def told_to(*callbacks: Any) -> SampleReporter:
    return SampleReporter({**CONTEXT, "task_state_store": MemoryState()}, [*callbacks], logging.getLogger())


def test_every_sample_is_measured(statsd: socket.socket) -> None:
    told = told_to()
    told.take(SAMPLE)
    assert heard(statsd, 7) == [
        "airflow.paceline.progress_pct,dag_id=retrain,task_id=train:50.0|g",
        "airflow.paceline.setpoint_pct,dag_id=retrain,task_id=train:52.5|g",
        "airflow.paceline.devices,dag_id=retrain,task_id=train:1.5|g",
        "airflow.paceline.deadline_s,dag_id=retrain,task_id=train:100.0|g",
        "airflow.paceline.error_pct,dag_id=retrain,task_id=train:2.5|g",
        "airflow.paceline.slack_s,dag_id=retrain,task_id=train:10.0|g",
        "airflow.paceline.control_step,dag_id=retrain,task_id=train:0.400000|ms",
    ]
    told.take(a_sample(**FIGURES | {"resizes": 3, "forecast_s": None, "step_ms": None}))
    assert heard(statsd, 6)[-1] == "airflow.paceline.resizes,dag_id=retrain,task_id=train:3|c"


def test_callbacks_get_the_context_and_the_alert() -> None:
    got: list[Any] = []
    told = told_to(got.append)
    for _ in range(5):
        told.take(HOPELESS)
    told.close()
    (context,) = got
    assert context["ti"] is CONTEXT["ti"]
    assert context["paceline"]["kind"] == "infeasible"
    assert context["paceline"]["message"] == "cannot be met: 30 s late at best"
    assert "paceline" not in CONTEXT


def test_a_callback_that_hangs_or_fails_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    go_on, got = threading.Event(), []

    def hang(context: Any) -> None:
        go_on.wait(10)
        raise RuntimeError("no such channel")

    told = told_to(hang, got.append)
    for _ in range(3):
        told.take(HOPELESS)  # returns at once
    assert not got
    go_on.set()
    told.close()
    assert len(got) == 1
    assert "no such channel" in caplog.text


def test_a_notifier_fills_its_templates_in_anew_for_each_alert() -> None:
    got: list[str] = []

    class Remember(LogNotifier):
        def notify(self, context: Any) -> None:
            got.append(self.message)

    remember = Remember("{{ ti.task_id }} {{ paceline.message }}")
    told = told_to(remember)
    for _ in range(3):
        told.take(HOPELESS)
    told.take(a_sample(t_s=103.0))
    told.close()
    assert got == ["train cannot be met: 30 s late at best", "train missed: at 50.0 % 3 s after it"]
