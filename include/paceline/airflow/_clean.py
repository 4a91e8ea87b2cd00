"""``paceline clean``: list and remove orphaned jobs on an engine and on this machine.

When a task ends, the worker process removes the task's job. The job is orphaned if the worker process dies first, if
Airflow does not tell it that the task has ended, or if the output cannot be collected. A job that has completed its
training, or was stopped after a checkpoint, is kept: a cleared task would use it. In a distributed training, only the
server has a checkpoint, and only the workers have an output.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from paceline.airflow._folders import report_folders
from paceline.airflow.engine_connection import default_client, has_default_engine
from paceline.contract import CONTAINER, LABEL_RUN_START, PACE, RUN_KEYS, RUN_START, Deadline, JobRecord, PaceSample
from paceline.errors import InvalidInputError, JobLostError, PacelineError, RuntimeUnavailableError
from paceline.extras import MissingLibraryError
from paceline.fleet.rendezvous import LABEL_ROLE, SERVER, WORKER

if TYPE_CHECKING:
    from paceline.airflow.api import AirflowApi
    from paceline.runtime import JobStatus, Runtime

Owner = Literal["task", "output", "checkpoint", "none", "unknown", "unread"]
_HEADINGS = ("JOB", "STATE", "DAG", "RUN", "TASK", "UPDATED", "")
_OWNER_TEXT: dict[Owner, str] = {
    "task": "its task has not ended",
    "output": "kept with its output: clear its task to collect it, or remove it with --remove --kept",
    "checkpoint": "kept with its checkpoint: clear its task to continue, or remove it with --remove --checkpoints",
    "none": "its task has ended",
    "unknown": "this Airflow has no such run",
    "unread": "its engine does not report its state, for example while it receives its files",
}
FINAL_STATES = ("success", "failed", "skipped", "upstream_failed", "removed")
_FINAL_RUN_STATES = ("success", "failed")


class FoundJob(NamedTuple):
    """A job on a runtime, with its labels, its status, its owner and the newest sample that its task stored."""

    runtime: Runtime
    id: str
    labels: dict[str, str]
    status: JobStatus
    owner: Owner
    sample: PaceSample | None

    def is_orphan(self, options: argparse.Namespace) -> bool:
        """Return whether the options ask for the removal of this job."""
        if self.owner == "unknown":
            age_s = time.time() - (self.status.started_s or time.time())
            return bool(options.unknown and age_s > options.older_than)
        if self.owner == "checkpoint":
            return bool(options.kept or options.checkpoints)
        return self.owner == "none" or bool(self.owner == "output" and options.kept)


def add_command(
    commands: Any, parents: list[argparse.ArgumentParser], connect: Callable[[argparse.Namespace], Any]
) -> None:
    """Add ``paceline clean`` to the subparsers."""
    clean = commands.add_parser("clean", parents=parents, help="list and remove orphaned jobs")
    clean.add_argument(
        "--kubernetes-conn-id",
        default="kubernetes_default",
        metavar="ID",
        help="connection to the cluster with the pods (kubernetes_default, else $KUBECONFIG)",
    )
    clean.add_argument("--engine", default=None, metavar="URL", help="Docker engine (default: DOCKER_HOST or local)")
    clean.add_argument("--remove", action="store_true", help="remove jobs whose task has ended")
    clean.add_argument("--checkpoints", action="store_true", help="also remove stopped jobs with a checkpoint")
    clean.add_argument("--kept", action="store_true", help="also remove jobs with an output or a checkpoint")
    clean.add_argument(
        "--unknown",
        action="store_true",
        help="also remove jobs of runs that this Airflow does not have, for example because they have been deleted; "
        "not if other Airflows use the engine, because their runs are unknown here",
    )
    clean.add_argument(
        "--older-than",
        type=seconds_of,
        default=7 * 86_400.0,
        metavar="TIME",
        help="with --unknown: only jobs that started before this time, such as 12h or 30d (default: 7d)",
    )
    clean.set_defaults(run=lambda options: _run_clean(options, connect(options)))


def find_jobs(api: AirflowApi, runtimes: list[Runtime]) -> Iterator[FoundJob]:
    """Yield every job of the runtimes, and look up in this Airflow whether a task still owns the job."""
    from paceline.runtime import JobStatus

    for runtime in runtimes:
        for job_id, labels in runtime.jobs():
            status = _status(runtime, job_id)
            if status is None:  # it may have an output or a checkpoint
                yield FoundJob(runtime, job_id, labels, JobStatus("running"), "unread", None)
                continue
            (dag, run, task), index = _task_of(labels)
            dag_run = _dag_run(api, dag, run)
            state = None if dag_run is None else _task_state(api, dag, run, task, index)
            # Another Airflow on this engine may have a task with the same ids, whose run began at another time.
            began = None if state is None else api.task_state(dag, run, task, RUN_START, map_index=index)
            if dag_run is None or began is None or began != labels.get(LABEL_RUN_START):
                yield FoundJob(runtime, job_id, labels, status, "unknown", None)
                continue
            sample = PaceSample.read(api.task_state(dag, run, task, PACE, map_index=index))
            # A run that a user marks leaves tasks that have not been scheduled without a state.
            is_over = state in FINAL_STATES or (state == "none" and dag_run["state"] in _FINAL_RUN_STATES)
            owner = _kept_for(status, labels.get(LABEL_ROLE)) if is_over else "task"
            yield FoundJob(runtime, job_id, labels, status, owner, sample)


def _kept_for(status: JobStatus, role: str | None) -> Owner:
    """Return what the job of an ended task has that a cleared task would use.

    Decide from the job, not from the task's state, which users can edit.
    """
    if status.state == "exited" and status.stopped and role != WORKER:
        return "checkpoint"
    if status.state == "exited" and status.exit_code == 0 and not status.stopped and role != SERVER:
        return "output"
    return "none"


def _dag_run(api: AirflowApi, dag: str, run: str) -> dict[str, Any] | None:
    return _none_if_missing(lambda: api.dag_run(dag, run)) if dag and run else None


def _task_state(api: AirflowApi, dag: str, run: str, task: str, index: int) -> str | None:
    """Return the state of a task instance; ``None`` if it does not exist, ``"none"`` if it has not been scheduled."""
    instance = _none_if_missing(lambda: api.task_instance(dag, run, task, index)) if task else None
    return None if instance is None else instance["state"] or "none"


def _none_if_missing(call: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    from paceline.airflow.api import AirflowApiError

    try:
        return call()
    except AirflowApiError as error:
        if error.status == 404:
            return None
        raise


def _run_clean(options: argparse.Namespace, api: AirflowApi) -> int:
    report_folders(remove=options.remove)
    jobs = sorted(
        find_jobs(api, _available_runtimes(options.engine, options.kubernetes_conn_id)),
        key=lambda job: (job.owner, job.id),
    )
    rows = [_HEADINGS, *map(_table_row, jobs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows if jobs else ():
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    orphans = [job for job in jobs if job.is_orphan(options)]
    if not options.remove or not orphans:
        print(f"Orphaned jobs: {len(orphans)} of {len(jobs)}." + (" Add --remove to remove them." if orphans else ""))
        return 0
    failures = 0
    for job in orphans:
        try:
            job.runtime.reattach(job.id).remove()
        except JobLostError:  # another process has removed the job
            pass
        except PacelineError as error:
            print(f"Could not remove {_short_id(job.id)}: {error}")
            failures += 1
            continue
        print(f"Removed {_short_id(job.id)}")
        if job.owner != "unknown":
            _delete_keys(api, job)
    return int(failures > 0)


def _delete_keys(api: AirflowApi, job: FoundJob) -> None:
    """Delete what the job's task has stored about it: an arbiter reserves the devices of a job that has a record."""
    from paceline.airflow.api import AirflowApiError

    task, index = _task_of(job.labels)
    try:
        record = JobRecord.read(api.task_state(*task, CONTAINER, map_index=index))
        for key in RUN_KEYS if record is not None and record.id == job.id else ():
            api.delete_task_state(*task, key, map_index=index)
    except AirflowApiError as error:
        print(f"What its task has stored about it is kept: {error}")


def _task_of(labels: Mapping[str, str]) -> tuple[tuple[str, str, str], int]:
    """Return the DAG, run and task of a job, and its map index."""
    dag, run, task = (labels.get(f"paceline.{part}", "") for part in ("dag", "run", "task"))
    return (dag, run, task), int(labels.get("paceline.map_index", "-1"))


def _available_runtimes(engine: str | None, kubernetes_conn_id: str) -> list[Runtime]:
    """Return the runtimes that respond: the containers of an engine, and the other installed runtimes.

    Print why a runtime does not respond. Print nothing about an engine without socket, ``DOCKER_HOST`` and
    ``--engine``, and about a cluster that no connection, file or pod names.
    """
    from paceline.airflow.runtimes import Kubernetes, installed_runtimes, named_settings
    from paceline.runtime import DockerRuntime

    containers = DockerRuntime(lambda: default_client(engine, timeout_s=30))
    runtime: Runtime
    found: list[Runtime] = []
    for name in (containers.name, *(name for name in installed_runtimes() if name != containers.name)):
        try:
            if name == containers.name:
                runtime, is_configured = containers, bool(engine) or has_default_engine()
            elif name == Kubernetes.name:
                cluster = Kubernetes(kubernetes_conn_id=kubernetes_conn_id)
                runtime, is_configured = cluster.open(), cluster.names_cluster()
            else:
                runtime, is_configured = named_settings(name).open(), True
            if is_configured:
                runtime.capacity()
                found.append(runtime)
        except MissingLibraryError:  # this Airflow does not use the runtime
            pass
        except PacelineError as error:
            if engine and name == containers.name:
                raise
            print(f"Cannot list the jobs of the runtime {name}: {error}")
    return found


def seconds_of(text: str) -> float:
    with contextlib.suppress(InvalidInputError):
        seconds = Deadline.parse(text, "").duration_s
        if seconds is not None and not text.strip().replace(".", "").isdigit():  # "90" would be 90 seconds
            return seconds
    raise argparse.ArgumentTypeError(f"got {text!r}, expected a duration with its unit, such as 12h or 30d")


def _status(runtime: Runtime, job_id: str) -> JobStatus | None:
    """Return the status of a job; ``None`` if its engine does not report it now."""
    from paceline.runtime import JobStatus

    try:
        job = runtime.reattach(job_id)
        status = job.status()
        job.close()
    except JobLostError:
        return JobStatus("gone")
    except RuntimeUnavailableError:
        return None
    return status


def _table_row(job: FoundJob) -> tuple[str, ...]:
    updated = job.sample.updated_at.strftime("%Y-%m-%d %H:%M:%S") if job.sample is not None else "-"
    task = (job.labels.get(f"paceline.{part}", "-") for part in ("dag", "run", "task"))
    return (_short_id(job.id), job.status.state, *task, updated, _OWNER_TEXT[job.owner])


def _short_id(job_id: str) -> str:
    return job_id.rpartition("/")[2] if "/" in job_id else job_id[:12]
