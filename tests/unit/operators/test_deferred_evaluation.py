"""An evaluation whose scripts the triggerer waits for. The scripts are real local processes, which wait for a file."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.models.trigger import Trigger
from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason
from airflow.sdk.exceptions import AirflowException, AirflowTaskTimeout, TaskDeferred
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.encoders import encode_trigger

from paceline.airflow.runtimes import Docker
from paceline.airflow.steering import TakenOverError
from paceline.errors import JobLostError, RuntimeUnavailableError
from paceline.operators import EvaluateOperator, _deferred_scoring, _job_control, _scoring, triggers
from paceline.operators._deferred_scoring import DeferredScoring, ScoringControl, ScoringSteps
from paceline.registry import FileRegistry
from paceline.run import ControlElsewhereError, MemoryState
from paceline.run.clock import SystemClock
from paceline.runtime import JobSpec, ProcessRuntime
from paceline.runtime.checks import job_files

SCRIPT = """
import json, pathlib, time
from paceline.train import input_dir, report
quality = json.loads((input_dir() / "model" / "model.json").read_text())
print("scoring a model of", quality["auc"], flush=True)
while not pathlib.Path(GATE).exists():
    time.sleep(0.01)
report(auc=quality["auc"], rows=len((input_dir() / "data" / "holdout.csv").read_text().split()))
"""
ENDED = {"reason": "ended"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_scoring, "_SHORT_S", 0.0)
    monkeypatch.setattr(_deferred_scoring, "_EVERY_S", 0.01)
    monkeypatch.setattr(triggers, "REPORTED_WITHIN_S", 0.0)


class Evaluation:
    """One try of a task that evaluates a model of a quality; each process of the try has an operator of its own."""

    def __init__(self, folder: Path, root: Path, **arguments: Any) -> None:
        self.folder, self.runtime, self.gate = folder, ProcessRuntime(root), folder / "gate"
        self.arguments = arguments
        ti = SimpleNamespace(dag_id="retrain", run_id="monday", task_id="evaluate", map_index=-1, xcom_push=Mock())
        ti.start_date = datetime.now(timezone.utc)
        self.context: Any = {"ti": ti, "dag_run": None, "task_state_store": MemoryState()}
        self.registry = FileRegistry(folder / "registry")
        (folder / "evaluate.py").write_text(SCRIPT.replace("GATE", repr(str(self.gate))))
        (folder / "holdout.csv").write_text("1\n2\n3\n")

    def operator(self) -> EvaluateOperator:
        operator = EvaluateOperator(
            **{
                "task_id": "evaluate",
                "model": "flights",
                "registry": str(self.folder / "registry"),
                "challenger": str(self.model(0.8)),
                "data": {"holdout.csv": str(self.folder / "holdout.csv")},
                "script": str(self.folder / "evaluate.py"),
                "metric": "auc",
                "runtime": "process",
                "deferrable": True,
                **self.arguments,
            }
        )
        operator.open_runtime = lambda settings: self.runtime  # type: ignore[method-assign]
        return operator

    def model(self, quality: float) -> Path:
        folder = self.folder / f"model-{quality}"
        folder.mkdir(exist_ok=True)
        (folder / "model.json").write_text(json.dumps({"auc": quality}))
        return folder

    def defer(self, event: Mapping[str, Any] | None = None, **kwargs: Any) -> TaskDeferred:
        """Run a process of the try, until it leaves the job to the triggerer."""
        with pytest.raises(TaskDeferred) as deferred:
            self.proceed(event, **kwargs)
        assert deferred.value.method_name == "execute_continued"
        return deferred.value

    def proceed(self, event: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        operator = self.operator()
        if event is None:
            return operator.execute(self.context)
        return operator.resume_execution(
            "execute_continued", {"event": dict(event), **json.loads(json.dumps(kwargs))}, self.context
        )

    def defer_to_end(self, event: Mapping[str, Any] | None = None, **kwargs: Any) -> TaskDeferred:
        """Run a process of the try, and wait for the end of the script for which the triggerer waits."""
        self.gate.unlink(missing_ok=True)
        deferred = self.defer(event, **kwargs)
        self.gate.touch()
        self.wait(deferred)
        return deferred

    def wait(self, deferred: TaskDeferred) -> None:
        """Wait as the triggerer does, with the trigger as Airflow has stored it."""
        steps = self.steps(deferred)
        with pytest.raises(ControlElsewhereError):
            for _ in steps.steps():
                pass

    def steps(self, deferred: TaskDeferred) -> ScoringSteps:
        return ScoringSteps(stored(deferred), lambda status: status is not None, lambda: "active", Mock())

    @property
    def jobs(self) -> int:
        return len(list(self.runtime.jobs()))


def stored(deferred: TaskDeferred) -> DeferredScoring:
    path, kwargs = deferred.trigger.serialize()
    assert path == "paceline.operators.triggers.ScoringTrigger"
    encrypted = Trigger.encrypt_kwargs(encode_trigger({"classpath": path, "kwargs": kwargs})["kwargs"])
    decode: Any = smart_decode_trigger_kwargs
    decoded = {name: decode(value) for name, value in Trigger._decrypt_kwargs(encrypted).items()}
    return DeferredScoring.read(triggers.ScoringTrigger(**decoded).job)


@pytest.fixture
def evaluation(tmp_path: Path, process_runtime_root: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluation:
    one = Evaluation(tmp_path, process_runtime_root)
    monkeypatch.setattr(_deferred_scoring, "stored_settings", lambda content: SimpleNamespace(open=lambda: one.runtime))
    return one


def with_champion(evaluation: Evaluation) -> None:
    registry = evaluation.registry
    registry.register(evaluation.model(0.7), name="flights", metrics={"auc": 0.7}, key="first")
    registry.promote("flights", 1, "first")


def test_each_model_is_scored_without_a_worker_slot(evaluation: Evaluation, capsys: pytest.CaptureFixture[str]) -> None:
    with_champion(evaluation)
    first = evaluation.defer_to_end()
    assert evaluation.jobs == 1
    second = evaluation.defer_to_end(ENDED, **first.kwargs)
    assert stored(second).name != stored(first).name
    assert evaluation.jobs == 1, "an ended pod would still reserve the cores that the next one needs"
    result = evaluation.proceed(ENDED, **second.kwargs)
    assert (result["challenger"], result["champion"], result["version"]) == (0.8, 0.7, 2)
    assert result["champion_metrics"]["rows"] == 3
    assert evaluation.jobs == 0
    lines = capsys.readouterr().out
    assert [lines.count(f"scoring a model of {quality}") for quality in (0.8, 0.7)] == [1, 1]


def test_script_that_ends_soon_is_not_deferred(evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_scoring, "_SHORT_S", 60.0)
    evaluation.gate.touch()
    assert evaluation.proceed()["challenger"] == 0.8
    assert evaluation.jobs == 0


def test_hold_out_that_changes_meanwhile_is_the_same_for_both_models(evaluation: Evaluation) -> None:
    with_champion(evaluation)
    deferred = evaluation.defer_to_end()
    (evaluation.folder / "holdout.csv").write_text("1\n2\n3\n4\n")
    for _ in range(2):  # the challenger again, then the champion
        deferred = evaluation.defer_to_end(ENDED, **deferred.kwargs)
    result = evaluation.proceed(ENDED, **deferred.kwargs)
    assert result["challenger_metrics"]["rows"] == result["champion_metrics"]["rows"] == 4


def test_job_that_still_starts_is_removed_with_its_task(
    evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = evaluation.operator()
    jobs: list[int] = []

    def files(spec: JobSpec) -> Iterator[tuple[str, Path]]:
        jobs.append(evaluation.jobs)
        operator.on_kill()
        jobs.append(evaluation.jobs)
        yield from job_files(spec)

    monkeypatch.setattr("paceline.runtime._process.job_files", files)
    with pytest.raises(AirflowException, match="The task was stopped; its job has been removed"):
        operator.execute(evaluation.context)
    assert jobs == [1, 0]


def test_script_that_fails_leaves_no_job(evaluation: Evaluation) -> None:
    script = evaluation.folder / "evaluate.py"
    script.write_text(script.read_text().replace("report(auc", "raise SystemExit('no such column')\nreport(auc"))
    deferred = evaluation.defer_to_end()
    with pytest.raises(AirflowException, match=r"(?s)scoring the challenger.*no such column"):
        evaluation.proceed(ENDED, **deferred.kwargs)
    assert evaluation.jobs == 0


@pytest.mark.parametrize("fails", [False, True])
def test_worker_process_waits_itself_after_an_error_of_the_triggerer(evaluation: Evaluation, fails: bool) -> None:
    deferred = evaluation.defer()
    evaluation.gate.touch()
    if fails:
        kwargs = {"error": TriggerFailureReason.TRIGGER_FAILURE.value, "traceback": ["No module named paceline"]}
        result = evaluation.operator().resume_execution(TRIGGER_FAIL_REPR, kwargs, evaluation.context)
    else:
        result = evaluation.proceed({"reason": "error"}, **deferred.kwargs)
    assert result["challenger"] == 0.8
    assert evaluation.jobs == 0


def test_time_limit_counts_from_the_start_of_the_try(evaluation: Evaluation) -> None:
    evaluation.arguments["execution_timeout"] = timedelta(hours=1)
    deferred = evaluation.defer()
    assert stored(deferred).ends_at == evaluation.context["ti"].start_date + timedelta(hours=1)
    evaluation.context["ti"].start_date -= timedelta(hours=1)
    with pytest.raises(AirflowTaskTimeout, match="execution_timeout"):
        evaluation.proceed({"reason": "timeout"}, **deferred.kwargs)
    assert evaluation.jobs == 0


@pytest.mark.parametrize(
    ("runtime", "deferrable", "expected"),
    [("process", None, False), (Docker(engine_conn_id="site"), None, True), ("process", True, True)],
)
def test_default_defers_only_jobs_whose_engine_a_connection_names(
    evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch, runtime: Any, deferrable: bool | None, expected: bool
) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    evaluation.arguments |= {"runtime": runtime, "deferrable": deferrable}
    assert evaluation.operator()._defers() == expected


def test_runtime_of_the_first_process_is_used_again(evaluation: Evaluation) -> None:
    evaluation.arguments["runtime"] = "auto"
    operator, opened = evaluation.operator(), []
    operator.open_runtime = opened.append  # type: ignore[assignment, method-assign]
    operator._earlier = {"runtime": "process", "reason": "ended"}
    operator._open_jobs(evaluation.context)
    assert [settings.name for settings in opened] == ["process"]


class Exchange:
    """A deferred task, as the triggerer sees it. ``error``: the answer, once set."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def exchange(self, take: Callable[[], Mapping[str, Any]], read: Sequence[str]) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        if self.error is not None:
            raise self.error
        return dict.fromkeys(read)


def control(deferred: TaskDeferred, exchange: Exchange) -> ScoringControl:
    instance = SimpleNamespace(dag_id="retrain", task_id="evaluate", map_index=-1)
    return ScoringControl(stored(deferred), exchange, instance, SystemClock(), logging.getLogger("test"))  # type: ignore[arg-type]


def test_triggerer_continues_the_task_when_the_script_has_ended(evaluation: Evaluation) -> None:
    deferred = evaluation.defer()

    async def run() -> dict[str, Any]:
        running = asyncio.create_task(control(deferred, Exchange()).run())
        await asyncio.sleep(0)
        evaluation.gate.touch()
        return await running

    assert asyncio.run(run()) == {"reason": "ended"}
    assert evaluation.jobs == 1


@pytest.mark.parametrize("over", [False, True])
def test_jobs_of_a_task_that_is_over_are_removed(evaluation: Evaluation, over: bool) -> None:
    with_champion(evaluation)
    first = evaluation.defer_to_end()
    evaluation.gate.unlink()
    second = evaluation.defer(ENDED, **first.kwargs)
    exchange = Exchange()
    exchange.error = TakenOverError(over=over)

    async def run() -> None:
        with pytest.raises(TakenOverError):
            await control(second, exchange).run()

    async def kill() -> None:
        one = control(second, exchange)
        await one.kill()

    asyncio.run(kill() if over else run())
    assert evaluation.jobs == (0 if over else 1)
    evaluation.gate.touch()


def test_triggerer_finds_the_job_after_an_outage_of_its_engine(
    evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferred, failures = evaluation.defer(), iter([RuntimeUnavailableError("away")] * 3)
    find = evaluation.runtime.find_job
    evaluation.gate.touch()

    def find_late(name: str, labels: Mapping[str, str]) -> Any:
        if (error := next(failures, None)) is not None:
            raise error
        return find(name, labels)

    monkeypatch.setattr(evaluation.runtime, "find_job", find_late)
    evaluation.wait(deferred)
    assert next(failures, None) is None
    monkeypatch.setattr(evaluation.runtime, "find_job", lambda name, labels: None)
    with pytest.raises(JobLostError):
        next(evaluation.steps(deferred).steps())


def test_job_that_the_triggerer_does_not_find_calls_a_worker_process(
    evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_job_control, "_END_EVERY_S", 0.0)
    deferred = evaluation.defer()
    monkeypatch.setattr(evaluation.runtime, "find_job", lambda name, labels: None)

    async def run() -> dict[str, Any]:
        return await control(deferred, Exchange()).run()

    assert asyncio.run(run()) == {"reason": "error"}
    evaluation.gate.touch()
