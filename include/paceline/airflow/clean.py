"""``paceline clean``: jobs on an engine, or on this machine, that no task owns any more; what it finds it can remove.

A task owns its jobs until it is over. One that is over has removed its job, unless its worker died at that moment, or
what the job made could not be collected: then the task's state store still says which job it is.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from paceline.contract import CONTAINER, PACE, JobRecord, PaceSample
from paceline.errors import JobLostError, PacelineError

if TYPE_CHECKING:
    from paceline.airflow.api import AirflowApi
    from paceline.runtime.base import Runtime

Owner = Literal["task", "kept", "nobody", "unknown"]
_HEADINGS = ("JOB", "STATE", "DAG", "RUN", "TASK", "STEERED", "")
_WORDS: dict[Owner, str] = {
    "task": "its task goes on",
    "kept": "kept: clear its task to collect its output",
    "nobody": "its task is over",
    "unknown": "this Airflow has no such run",
}
_OF_A_TEAM = "paceline.team"  # the record names the first of its containers
_OVER = ("success", "failed", "skipped", "upstream_failed", "removed")


class Found(NamedTuple):
    """A job, what it is labelled with, and who owns it."""

    runtime: Runtime
    id: str
    labels: dict[str, str]
    owner: Owner
    sample: PaceSample | None


def add_to(commands: Any, parents: list[argparse.ArgumentParser], connect: Callable[[argparse.Namespace], Any]) -> None:
    """Add the command to a parser's."""
    clean = commands.add_parser("clean", parents=parents, help="list jobs that no task owns any more, and remove them")
    clean.add_argument("--engine", default=None, metavar="URL", help="Docker engine (DOCKER_HOST, else the local one)")
    clean.add_argument("--remove", action="store_true", help="remove the jobs whose task is over")
    clean.add_argument("--kept", action="store_true", help="remove also what is kept to be collected")
    clean.set_defaults(run=lambda chosen: _clean(chosen, connect(chosen)))


def find(api: AirflowApi, runtimes: list[Runtime]) -> Iterator[Found]:
    """Every job of these runtimes, with its owner in this Airflow."""
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
            if state in _OVER:
                record = JobRecord.read(api.task_state(dag, run, task, CONTAINER, map_index=index))
                is_named = record is not None and (record.id == job_id or _OF_A_TEAM in labels)
                owner = "kept" if is_named else "nobody"
            yield Found(runtime, job_id, labels, owner, sample)


def _has_run(api: AirflowApi, dag: str, run: str, labels: Mapping[str, str]) -> bool:
    """Whether this Airflow has the run that a job is of. Another one may have a run of the same name."""
    found = _or_none(lambda: api.dag_run(dag, run)) if dag and run else None
    began, label = found and found["start_date"], labels.get("paceline.began")
    return bool(began and label) and _moment(str(began)) == _moment(str(label))


def _task_state(api: AirflowApi, dag: str, run: str, task: str, index: int) -> str | None:
    """The state of a task instance; ``None`` if there is none, ``"none"`` if it has not been scheduled yet."""
    found = _or_none(lambda: api.task_instance(dag, run, task, index)) if task else None
    return None if found is None else found["state"] or "none"


def _or_none(ask: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    from paceline.airflow.api import AirflowApiError

    try:
        return ask()
    except AirflowApiError as error:
        if error.status == 404:
            return None
        raise


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 does not know "Z"
    except ValueError:
        return None


def _clean(chosen: argparse.Namespace, api: AirflowApi) -> int:
    found = sorted(find(api, _runtimes(chosen.engine)), key=lambda one: (one.owner, one.id))
    rows = [_HEADINGS, *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows if found else ():
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    to_go = [one for one in found if one.owner == "nobody" or (one.owner == "kept" and chosen.kept)]
    if not chosen.remove or not to_go:
        print(f"{len(to_go)} of {len(found)} jobs belong to nobody." + (" --remove removes them." if to_go else ""))
        return 0
    for one in to_go:
        with contextlib.suppress(JobLostError):  # somebody was quicker
            one.runtime.reattach(one.id).remove()
        print(f"Removed {_short(one.id)}")
    return 0


def _runtimes(engine: str | None) -> list[Runtime]:
    from docker import APIClient

    from paceline.runtime import DockerRuntime, ProcessRuntime

    here = engine or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    containers = DockerRuntime(lambda: APIClient(base_url=here, version="auto", timeout=30))
    try:
        containers.capacity()
    except PacelineError as error:
        print(f"Containers are left out: {error}")
        return [ProcessRuntime()]
    return [containers, ProcessRuntime()]


def _row(one: Found) -> tuple[str, ...]:
    try:
        job = one.runtime.reattach(one.id)
        state = job.status().state
        job.close()
    except JobLostError:
        state = "gone"
    steered = one.sample.updated_at.strftime("%Y-%m-%d %H:%M:%S") if one.sample is not None else "-"
    place = (one.labels.get(f"paceline.{part}", "-") for part in ("dag", "run", "task"))
    return (_short(one.id), state, *place, steered, _WORDS[one.owner])


def _short(job_id: str) -> str:
    return job_id.rpartition("/")[2] if "/" in job_id else job_id[:12]
