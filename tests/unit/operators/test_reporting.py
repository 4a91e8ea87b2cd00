"""Metrics and callbacks of a running training job."""

from __future__ import annotations

import logging
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tests.metrics import receive_metrics, statsd  # noqa: F401
from tests.samples import a_sample

from paceline.operators import LogNotifier
from paceline.operators._reporting import SampleReporter
from paceline.run import MemoryState

FIGURES = {"forecast_s": 90.0, "setpoint_pct": 52.5, "devices": 1.5, "step_ms": 0.4}
SAMPLE = a_sample(**FIGURES)
INFEASIBLE = a_sample(feasible=False, earliest_s=130.0)
CONTEXT: Any = {"ti": SimpleNamespace(dag_id="retrain", task_id="train", map_index=-1)}


def reporter_for(*callbacks: Any) -> SampleReporter:
    return SampleReporter(CONTEXT, [*callbacks], logging.getLogger(), MemoryState())


def test_every_sample_is_sent_to_statsd(statsd: socket.socket) -> None:  # noqa: F811
    reporter = reporter_for()
    reporter.report(SAMPLE)
    assert receive_metrics(statsd, 7) == [
        "airflow.paceline.progress_pct,dag_id=retrain,task_id=train:50.0|g",
        "airflow.paceline.setpoint_pct,dag_id=retrain,task_id=train:52.5|g",
        "airflow.paceline.devices,dag_id=retrain,task_id=train:1.5|g",
        "airflow.paceline.deadline_s,dag_id=retrain,task_id=train:100.0|g",
        "airflow.paceline.error_pct,dag_id=retrain,task_id=train:2.5|g",
        "airflow.paceline.slack_s,dag_id=retrain,task_id=train:10.0|g",
        "airflow.paceline.control_step,dag_id=retrain,task_id=train:0.400000|ms",
    ]
    reporter.report(a_sample(**FIGURES | {"resizes": 3, "forecast_s": None, "step_ms": None}))
    assert receive_metrics(statsd, 6)[-1] == "airflow.paceline.resizes,dag_id=retrain,task_id=train:3|c"


def test_callbacks_receive_the_context_and_the_alert() -> None:
    calls: list[Any] = []
    reporter = reporter_for(calls.append)
    for _ in range(5):
        reporter.report(INFEASIBLE)
    reporter.close()
    (context,) = calls
    assert context["ti"] is CONTEXT["ti"]
    assert context["paceline"]["kind"] == "infeasible"
    assert context["paceline"]["message"] == "cannot be met: 30 s late at best"
    assert "paceline" not in CONTEXT


def test_hanging_or_failing_callback_does_not_block_the_reporter(caplog: pytest.LogCaptureFixture) -> None:
    release, calls = threading.Event(), []

    def wait_for_release(context: Any) -> None:
        release.wait(10)
        raise RuntimeError("no such channel")

    reporter = reporter_for(wait_for_release, calls.append)
    for _ in range(3):
        reporter.report(INFEASIBLE)  # close() does not wait for callbacks
    assert not calls
    release.set()
    reporter.close()
    assert len(calls) == 1
    assert "no such channel" in caplog.text


def test_notifier_renders_its_templates_for_each_alert() -> None:
    calls: list[str] = []

    class RecordingNotifier(LogNotifier):
        def notify(self, context: Any) -> None:
            calls.append(self.message)

    recorder = RecordingNotifier("{{ ti.task_id }} {{ paceline.message }}")
    reporter = reporter_for(recorder)
    for _ in range(3):
        reporter.report(INFEASIBLE)
    reporter.report(a_sample(t_s=103.0))
    reporter.close()
    assert calls == ["train cannot be met: 30 s late at best", "train missed: at 50.0 %, 3 s late"]


def test_resizes_of_an_earlier_process_are_not_counted_again(statsd: socket.socket) -> None:  # noqa: F811
    reporter = reporter_for()
    for resizes in (11, 12):
        reporter.report(a_sample(**FIGURES | {"resizes": resizes}))
    assert receive_metrics(statsd, 15)[-1] == "airflow.paceline.resizes,dag_id=retrain,task_id=train:1|c"
