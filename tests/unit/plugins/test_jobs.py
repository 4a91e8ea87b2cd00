"""The lists of training jobs, from the tables that Airflow creates in a new database."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel as Stored
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import DAG, BaseOperator
from airflow.utils.state import TaskInstanceState
from airflow.utils.types import DagRunType
from sqlalchemy.orm import Session
from tests.samples import a_sample

from paceline.contract import CONTAINER, DEADLINE, NOT_STARTED, OUTPUT, PACE, CollectedOutput, StartFailure
from paceline.plugins.web.jobs import all_jobs

NOW = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


def add_running_job(
    session: Session, dag_id: str, deadline: str, state: TaskInstanceState = TaskInstanceState.RUNNING
) -> None:
    """Store the task of a training job, with the stored form of its deadline."""
    with DAG(dag_id, schedule=None):
        task = BaseOperator(task_id="train")
    run = DagRun(dag_id=dag_id, run_id="r", run_type=DagRunType.MANUAL)
    instance = TaskInstance(task, dag_version_id=None, run_id="r")
    instance.state = state
    session.add_all((run, instance))
    session.flush()
    keys = {"dag_run_id": run.id, "dag_id": dag_id, "run_id": "r", "task_id": "train", "map_index": -1}
    for key, value in ((PACE, json.dumps(a_sample().to_json())), (DEADLINE, deadline)):
        session.add(Stored(**keys, key=key, value=value))
    session.flush()


@pytest.mark.parametrize("value", ['"\\ud800"', '{"deadline": "20m", "by": "\\ud800"}', "[" * 5000 + "]" * 5000])
def test_deadline_that_json_cannot_encode_does_not_hide_the_jobs(session: Session, value: str) -> None:
    add_running_job(session, "a", value)
    add_running_job(session, "b", '"20m"')
    listed = json.loads(all_jobs(session, {"a", "b"}, recent=0).model_dump_json())
    assert [(job["dag_id"], job["deadline"]["value"]) for job in listed["running"]] == [("a", None), ("b", "20m")]


def test_long_job_that_has_just_ended_comes_before_shorter_ones_that_started_later(session: Session) -> None:
    names = ["long", "first", "second"]
    for name in names:
        add_running_job(session, name, '"20m"', TaskInstanceState.FAILED)
    for name, minutes in zip(names, (50, 10, 20), strict=True):
        of_job = session.query(Stored).filter_by(dag_id=name, key=PACE)
        updated_at = NOW + timedelta(minutes=minutes)
        sample = {**a_sample().to_json(), "updated_at": updated_at.isoformat()}
        of_job.update({"value": json.dumps(sample), "updated_at": updated_at})
    listed = all_jobs(session, set(names), recent=2).recent
    assert [job.dag_id for job in listed] == ["long", "second"]
    assert all_jobs(session, set(names), recent=0).recent == []


def test_job_that_waits_in_the_triggerer_is_running(session: Session) -> None:
    add_running_job(session, "a", '"20m"', TaskInstanceState.DEFERRED)
    assert [job.dag_id for job in all_jobs(session, {"a"}, recent=0).running] == ["a"]


@pytest.mark.parametrize(
    ("state", "pace", "container", "listed"),
    [
        (TaskInstanceState.UP_FOR_RETRY, "failed", False, True),
        (TaskInstanceState.QUEUED, "failed", False, True),
        (TaskInstanceState.QUEUED, "training", True, True),  # it leaves the triggerer
        (TaskInstanceState.QUEUED, "finished", True, True),  # a worker is about to collect its output
        (TaskInstanceState.QUEUED, "finished", False, False),  # it was cleared
        (TaskInstanceState.RUNNING, "finished", False, True),
    ],
)
def test_job_between_two_processes_of_its_task_is_running(
    session: Session, state: TaskInstanceState, pace: str, container: bool, listed: bool
) -> None:
    add_running_job(session, "a", '"20m"', state)
    sample = session.query(Stored).filter_by(key=PACE).one()
    sample.value = json.dumps(a_sample(state=pace).to_json())
    keys = {name: getattr(sample, name) for name in ("dag_run_id", "dag_id", "run_id", "task_id", "map_index")}
    session.add_all([Stored(**keys, key=CONTAINER, value="{}")] * container)
    session.flush()
    assert [job.dag_id for job in all_jobs(session, {"a"}, recent=0).running] == ["a"] * listed


def add_unstarted(
    session: Session, dag_id: str, state: TaskInstanceState, sample_after: timedelta | None = None
) -> None:
    """Store the task of a training that did not start, and the sample of a job before or after that."""
    add_running_job(session, dag_id, '"20m"', state)
    samples = session.query(Stored).filter_by(dag_id=dag_id, key=PACE)
    sample = samples.one()
    failure = StartFailure(at=NOW, reason="script: got 'train.py', expected an existing file")
    keys = {name: getattr(sample, name) for name in ("dag_run_id", "dag_id", "run_id", "task_id", "map_index")}
    session.add(Stored(**keys, key=NOT_STARTED, value=json.dumps(failure.to_json()), updated_at=NOW))
    if sample_after is None:
        samples.delete()
    else:
        sample.updated_at = NOW + sample_after
    session.flush()


@pytest.mark.parametrize("state", [TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY])
def test_training_that_never_started_is_listed_with_its_reason(any_session: Session, state: TaskInstanceState) -> None:
    add_unstarted(any_session, "a", state)
    listed = all_jobs(any_session, {"a"}, recent=0)
    (job,) = listed.unstarted
    assert (job.dag_id, job.task_id, job.state) == ("a", "train", state)
    assert job.reason == "script: got 'train.py', expected an existing file"
    assert (listed.running, listed.recent) == ([], [])
    assert all_jobs(any_session, {"b"}, recent=0).unstarted == []


@pytest.mark.parametrize(
    ("state", "sample_after", "unstarted", "recent"),
    [
        (TaskInstanceState.FAILED, -timedelta(minutes=1), 1, 0),  # the sample is from before the task was cleared
        (TaskInstanceState.FAILED, timedelta(minutes=1), 0, 1),  # a later try has started the job, which failed
        (TaskInstanceState.SUCCESS, timedelta(minutes=1), 0, 1),
        (TaskInstanceState.SKIPPED, None, 0, 0),
        (TaskInstanceState.RUNNING, None, 0, 0),  # the next try is starting the job
    ],
)
def test_only_the_last_try_counts_as_not_started(
    session: Session, state: TaskInstanceState, sample_after: timedelta | None, unstarted: int, recent: int
) -> None:
    add_unstarted(session, "a", state, sample_after)
    listed = all_jobs(session, {"a"}, recent=10)
    assert (len(listed.unstarted), len(listed.recent)) == (unstarted, recent)


@pytest.mark.parametrize(("state", "shown"), [("finished", True), ("training", False)])
def test_finished_job_has_the_warning_about_its_output(session: Session, state: str, shown: bool) -> None:
    add_running_job(session, "a", '"20m"', TaskInstanceState.SUCCESS)
    sample = session.query(Stored).filter_by(key=PACE).one()
    sample.value = json.dumps(a_sample(state=state).to_json())
    keys = {name: getattr(sample, name) for name in ("dag_run_id", "dag_id", "run_id", "task_id", "map_index")}
    output = CollectedOutput(place="/models", warning="The output is empty")
    session.add(Stored(**keys, key=OUTPUT, value=json.dumps(output.to_json())))
    session.flush()
    (job,) = all_jobs(session, {"a"}, recent=1).recent
    assert job.warning == ("The output is empty" if shown else None)


@pytest.mark.parametrize(
    ("deadline", "sample_after", "pending"),
    [
        ('"40s"', timedelta(seconds=1), True),
        ('"100s"', timedelta(seconds=1), False),  # the job has applied it
        ('"40s"', timedelta(minutes=1), False),  # the job has rejected it
    ],
)
def test_deadline_is_pending_until_the_job_has_read_it(
    session: Session, deadline: str, sample_after: timedelta, pending: bool
) -> None:
    add_running_job(session, "a", deadline)
    rows = {row.key: row for row in session.query(Stored).all()}
    rows[DEADLINE].updated_at, rows[PACE].updated_at = NOW, NOW + sample_after
    session.flush()
    (job,) = all_jobs(session, {"a"}, recent=0).running
    assert job.deadline is not None
    assert job.deadline.pending is pending
