"""``paceline clean``: list and remove orphaned jobs on an engine and on this machine.

A task owns its job until the task ends, and then removes it. A job is left over if the worker process dies at that
moment, or if its output could not be collected. In the second case the task's state store still names the job.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from paceline.airflow.engine_connection import default_engine
from paceline.contract import CONTAINER, PACE, JobRecord, PaceSample
from paceline.errors import JobLostError, PacelineError

if TYPE_CHECKING:
    from paceline.airflow.api import AirflowApi
    from paceline.runtime import Runtime

Owner = Literal["task", "kept", "none", "unknown"]
_HEADINGS = ("JOB", "STATE", "DAG", "RUN", "TASK", "UPDATED", "")
_OWNER_TEXT: dict[Owner, str] = {
    "task": "its task has not ended",
    "kept": "kept: clear its task to collect its output",
    "none": "its task has ended",
    "unknown": "this Airflow has no such run",
}
_TEAM_LABEL = "paceline.team"  # a team has several containers; its record names only the first
_FINAL_STATES = ("success", "failed", "skipped", "upstream_failed", "removed")


class Found(NamedTuple):
    """A job with its labels, its owner and its task's newest sample."""

    runtime: Runtime
    id: str
    labels: dict[str, str]
    owner: Owner
    sample: PaceSample | None


def add_to(commands: Any, parents: list[argparse.ArgumentParser], connect: Callable[[argparse.Namespace], Any]) -> None:
    """Add the command to the subparsers."""
    clean = commands.add_parser("clean", parents=parents, help="list and remove orphaned jobs")
    clean.add_argument("--engine", default=None, metavar="URL", help="Docker engine (DOCKER_HOST, else the local one)")
    clean.add_argument("--remove", action="store_true", help="remove the jobs whose task has ended")
    clean.add_argument("--kept", action="store_true", help="also remove jobs whose output has not been collected")
    clean.set_defaults(run=lambda options: _clean(options, connect(options)))


def find(api: AirflowApi, runtimes: list[Runtime]) -> Iterator[Found]:
    """Yield every job of these runtimes with its owner in this Airflow."""
    for runtime in runtimes:
        for job_id, labels in runtime.jobs():
            dag, run, task = (labels.get(f"paceline.{part}", "") for part in ("dag", "run", "task"))
            index = int(labels.get("paceline.map_index", "-1"))
            state = _task_state(api, dag, run, task, index) if _has_run(api, dag, run, labels) else None
            if state is None:
                yield Found(runtime, job_id, labels, "unknown", None)
                continue
            sample = PaceSample.read(api.task_state(dag, run, task, PACE, map_index=index))
            owner: Owner = "task"
            if state in _FINAL_STATES:
                record = JobRecord.read(api.task_state(dag, run, task, CONTAINER, map_index=index))
                is_recorded = record is not None and (record.id == job_id or _TEAM_LABEL in labels)
                owner = "kept" if is_recorded else "none"
            yield Found(runtime, job_id, labels, owner, sample)


def _has_run(api: AirflowApi, dag: str, run: str, labels: Mapping[str, str]) -> bool:
    """Return whether this Airflow has the job's run. Run ids repeat between Airflows, so start times are compared."""
    found = _or_none(lambda: api.dag_run(dag, run)) if dag and run else None
    began, label = found and found["start_date"], labels.get("paceline.began")
    return bool(began and label) and _parse_time(str(began)) == _parse_time(str(label))


def _task_state(api: AirflowApi, dag: str, run: str, task: str, index: int) -> str | None:
    """Return the state of a task instance; ``None`` if it does not exist, ``"none"`` if it is not scheduled yet."""
    found = _or_none(lambda: api.task_instance(dag, run, task, index)) if task else None
    return None if found is None else found["state"] or "none"


def _or_none(call: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    from paceline.airflow.api import AirflowApiError

    try:
        return call()
    except AirflowApiError as error:
        if error.status == 404:
            return None
        raise


def _parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 does not parse "Z"
    except ValueError:
        return None


def _clean(options: argparse.Namespace, api: AirflowApi) -> int:
    found = sorted(find(api, _runtimes(options.engine)), key=lambda one: (one.owner, one.id))
    rows = [_HEADINGS, *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows if found else ():
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    orphans = [one for one in found if one.owner == "none" or (one.owner == "kept" and options.kept)]
    if not options.remove or not orphans:
        print(f"Orphaned jobs: {len(orphans)} of {len(found)}." + (" --remove removes them." if orphans else ""))
        return 0
    for one in orphans:
        with contextlib.suppress(JobLostError):  # the job has been removed in the meantime
            one.runtime.reattach(one.id).remove()
        print(f"Removed {_short(one.id)}")
    return 0


def _runtimes(engine: str | None) -> list[Runtime]:
    from docker import APIClient

    from paceline.runtime import DockerRuntime, ProcessRuntime

    here = engine or default_engine()
    containers = DockerRuntime(lambda: APIClient(base_url=here, version="auto", timeout=30))
    try:
        containers.capacity()
    except PacelineError as error:
        print(f"Containers are not listed: {error}")
        return [ProcessRuntime()]
    return [containers, ProcessRuntime()]


def _row(one: Found) -> tuple[str, ...]:
    try:
        job = one.runtime.reattach(one.id)
        state = job.status().state
        job.close()
    except JobLostError:
        state = "gone"
    updated = one.sample.updated_at.strftime("%Y-%m-%d %H:%M:%S") if one.sample is not None else "-"
    task = (one.labels.get(f"paceline.{part}", "-") for part in ("dag", "run", "task"))
    return (_short(one.id), state, *task, updated, _OWNER_TEXT[one.owner])


def _short(job_id: str) -> str:
    return job_id.rpartition("/")[2] if "/" in job_id else job_id[:12]
