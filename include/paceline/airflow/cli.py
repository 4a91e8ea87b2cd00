"""The ``paceline`` command: list running jobs and change their deadlines, through Airflow's REST API.

The command logs in as the user, so Airflow's permissions apply.
"""

from __future__ import annotations

import argparse
import getpass
import json
import math
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from paceline import __version__
from paceline.airflow import _backup_command as backup
from paceline.airflow import _clean as clean
from paceline.airflow import _fleet_command as fleet
from paceline.airflow import _model_command as model
from paceline.airflow import _past_jobs as past_jobs
from paceline.airflow import _prune_command as prune
from paceline.contract import PaceSample, StoredDeadline
from paceline.errors import InvalidInputError, PacelineError
from paceline.simulate import command as simulate

if TYPE_CHECKING:
    from paceline.airflow.api import AirflowApi

_RECENT = timedelta(hours=1)
_DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
_HEADINGS = ("DAG", "RUN", "TASK", "STATE", "PROGRESS", "SETPOINT", "DEVICES", "DEADLINE", "FORECAST", "SLACK")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code: 0, 1 after an error, or 130 after an interrupt."""
    options = _parser().parse_args(arguments)
    _allow_import_of_airflow()
    import httpx

    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended; do not fail again at the final flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (httpx.TransportError, httpx.InvalidURL) as error:
        print(f"paceline: --url: got {options.url!r}, expected a reachable Airflow ({error})", file=sys.stderr)
        return 1
    except (PacelineError, OSError) as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 1


def _allow_import_of_airflow() -> None:
    """Let Airflow be imported in a task's command: instead of the database's URL, tasks have one that is no URL."""
    if os.environ.get(_DATABASE, "").startswith("airflow-db-not-allowed"):
        os.environ[_DATABASE] = "sqlite://"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="paceline", description="Monitor and control Airflow's training jobs.")
    parser.add_argument("--version", action="version", version=__version__)
    login = argparse.ArgumentParser(add_help=False)
    login.add_argument(
        "--url",
        default=os.environ.get("PACELINE_AIRFLOW_URL", "http://localhost:8080"),
        help="URL of Airflow (default: PACELINE_AIRFLOW_URL, now %(default)s)",
    )
    login.add_argument(
        "--user",
        default=os.environ.get("PACELINE_AIRFLOW_USER", "admin"),
        help="Airflow user (default: PACELINE_AIRFLOW_USER, now %(default)s). The command reads the password from "
        "PACELINE_AIRFLOW_PASSWORD or asks for it, unless PACELINE_AIRFLOW_TOKEN contains a token",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    status = commands.add_parser(
        "status",
        parents=[login],
        help="list the running training jobs, and those that did not start in the last hour",
    )
    status.add_argument("dag", nargs="?", metavar="DAG", help="list only jobs of this DAG")
    status.add_argument("--json", action="store_true", help="print the newest sample of each job as JSON")
    status.set_defaults(run=_status)

    deadline = commands.add_parser("deadline", help="read or change the deadline of a running training job")
    actions = deadline.add_subparsers(required=True, metavar="ACTION")
    show = actions.add_parser("show", parents=[login], help="print the deadline as written, and in force if it differs")
    change = actions.add_parser("set", parents=[login], help="change the deadline")
    for action, run in ((show, _show_deadline), (change, _set_deadline)):
        action.add_argument("dag", metavar="DAG")
        action.add_argument("dag_run", metavar="RUN", help='id of the DAG run, or "latest"')
        action.add_argument("task", metavar="TASK", help="id of a task, or of a task group such as that of a fleet")
        action.add_argument("--map-index", type=int, default=-1, help="index of a mapped task")
        action.set_defaults(run=run)
    change.add_argument("value", metavar="DEADLINE", help='"15m", "PT15M", seconds, "2030-01-31T18:00:00Z", or "none"')
    backup.add_commands(commands)
    clean.add_command(commands, [login], _connect)
    fleet.add_command(commands)
    model.add_command(commands, [login], _connect)
    prune.add_command(commands, [login], _connect)
    simulate.add_command(
        commands, [past_jobs.options(), login], lambda options: past_jobs.read_past_jobs(options, _connect)
    )
    return parser


def _status(options: argparse.Namespace) -> int:
    found = _connect(options).pages("/jobs", recent=0)
    jobs, unstarted = (
        [job for job in found[kind] if options.dag in (None, job["dag_id"])] for kind in ("running", "unstarted")
    )
    since = datetime.now(timezone.utc) - _RECENT
    unstarted = [job for job in unstarted if job["state"] != "failed" or _time_of(job["at"]) >= since]
    if options.json:
        task, names = ("dag_id", "run_id", "task_id", "map_index"), ("pace", "state", "at", "reason")
        listed = [{name: job.get(name) for name in (*task, *names)} for job in (*jobs, *unstarted)]
        print(json.dumps(listed, indent=1))
        return 0
    _print_table(jobs)
    for job in unstarted:
        end = "was not started" if job["state"] == "failed" else "was not started yet, Airflow tries again"
        at = f"{_time_of(job['at']).astimezone():%Y-%m-%d %H:%M:%S}"
        print(f"{job['dag_id']}  {job['run_id']}  {_task_name(job)}  {end} ({at}): {job['reason']}")
    return 0


def _time_of(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _print_table(jobs: Sequence[dict[str, Any]]) -> None:
    rows = [
        (job["dag_id"], job["run_id"], _task_name(job), *_table_cells(pace, job["state"]))
        for job in jobs
        if (pace := PaceSample.read(job["pace"])) is not None
    ]
    if not rows:
        print("No training job is running.")
        return
    widths = [max(len(row[column]) for row in (_HEADINGS, *rows)) for column in range(len(_HEADINGS))]
    for row in (_HEADINGS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _table_cells(pace: PaceSample, task_state: str) -> tuple[str, ...]:
    """Format the newest sample of a job as table cells."""
    is_waiting = pace.state != "finished" and task_state not in ("running", "deferred")
    forecast_s, deadline_s = pace.forecast_s, pace.deadline_s
    # The job has ended, or only its output is being collected.
    is_done = pace.state == "finished" or pace.progress_pct >= 100
    if pace.state == "failed":
        slack = "-"
    elif forecast_s is None:
        slack = "not known yet"
    elif deadline_s is None:
        slack = "as fast as its budget allows"
    elif is_done and forecast_s > deadline_s:
        slack = f"{forecast_s - deadline_s:.0f} s late"
    elif not pace.feasible and pace.earliest_s is not None:
        slack = f"cannot be met, {pace.earliest_s - deadline_s:.0f} s late at best"
    else:
        slack_s = deadline_s - forecast_s
        slack = f"{slack_s:.0f} s" if slack_s >= 0 else f"{-slack_s:.0f} s behind, catching up"
    return (
        f"{pace.state}, waits for its next try" if is_waiting else pace.state,
        f"{pace.progress_pct:.1f} %",
        f"{pace.setpoint_pct:.1f} %" if deadline_s is not None else "-",
        f"{pace.devices:.2f} {pace.unit}",
        "-" if deadline_s is None else f"{deadline_s:.0f} s",
        "-" if forecast_s is None else f"{forecast_s:.0f} s",
        slack,
    )


def _show_deadline(options: argparse.Namespace) -> int:
    api = _connect(options)
    jobs = _training_jobs(api, options, _run_id(api, options))
    for job in jobs:
        text = _deadline_text(job)
        print(text if _is_named(job, options) else f"{_task_name(job)}: {text}")
    return 0


def _set_deadline(options: argparse.Namespace) -> int:
    deadline = StoredDeadline.read(options.value)
    deadline.parse(optional=True)
    api = _connect(options)
    run = _run_id(api, options)
    jobs = _training_jobs(api, options, run)
    targets = [{key: job[key] for key in ("task_id", "map_index")} for job in jobs]
    for target, job in zip(targets, jobs, strict=True):
        target["seen"] = job["deadline"]["updated_at"]
    path = f"/dags/{quote(options.dag)}/dagRuns/{quote(run)}/deadline"
    api.pages(path, {"deadline": deadline.to_json(), "jobs": targets}, method="PUT")
    for job in jobs:
        print(
            f"Deadline of {_task_name(job)} in {run}: {_deadline_text(job)}{_author_of(job)} -> {options.value}. "
            "The task applies it within two control periods."
        )
    return 0


def _author_of(job: dict[str, Any]) -> str:
    """Return which user has set the deadline that the command replaces: `` (set by ann)``, or an empty text."""
    return f" (set by {by})" if (by := job["deadline"].get("by")) else ""


def _deadline_text(job: dict[str, Any]) -> str:
    """Return the stored deadline of a job, and the one in force if the job has rejected the stored one."""
    value, pace = job["deadline"]["value"], PaceSample.read(job["pace"])
    text = str(value or "none")
    if pace is None:
        return text
    in_force_s = pace.deadline_in_force_s
    applies = StoredDeadline(value).is_in_force(pace.origin, in_force_s)
    return text if applies else f"{text} (in force: {'none' if math.isinf(in_force_s) else f'{in_force_s:g} s'})"


def _training_jobs(api: AirflowApi, options: argparse.Namespace, run: str) -> list[dict[str, Any]]:
    """Return the running training jobs that the options name, as the pages get them.

    The options name a task, all instances of a mapped task, or a group of tasks, such as the one of a fleet.
    """
    found = api.pages(f"/dags/{quote(options.dag)}/dagRuns/{quote(run)}/jobs")
    if found["state"] is None:
        api.api("GET", f"/dags/{quote(options.dag)}")  # raises an error for an unknown DAG
        raise InvalidInputError("RUN", run, f'the id of a run of {options.dag}, or "latest"')
    # An ended task keeps the deadline of a job that is stopped and has a checkpoint.
    jobs: list[dict[str, Any]] = [
        job for job in found["jobs"] if job["deadline"] is not None and job["state"] not in clean.FINAL_STATES
    ]
    named = [job for job in jobs if _is_named(job, options)]
    group = [job for job in jobs if f"{job['task_id']}.".startswith(f"{options.task}.")]
    if not (named or group):
        running = ", ".join(sorted(map(_task_name, jobs))) or "none"
        accepted = f"a running training task of run {run} of {options.dag} ({running})"
        if early := _tasks_without_job(api, options, run):
            accepted += f"; {early} is running, but has no training job yet: wait until `paceline status` lists it"
        raise InvalidInputError("TASK", options.task, accepted)
    return named or sorted(group, key=lambda job: (job["task_id"], job["map_index"]))


def _tasks_without_job(api: AirflowApi, options: argparse.Namespace, run: str) -> str:
    """Return the names of the running tasks that the options name, for a message; none of these tasks has a job."""
    path = f"/dags/{quote(options.dag)}/dagRuns/{quote(run)}/taskInstances"
    found = api.api("GET", path, state=["running", "deferred"], limit=100)["task_instances"]
    return ", ".join(sorted(_task_name(task) for task in found if f"{task['task_id']}.".startswith(f"{options.task}.")))


def _is_named(job: dict[str, Any], options: argparse.Namespace) -> bool:
    return (job["task_id"], job["map_index"]) == (options.task, options.map_index)


def _task_name(job: dict[str, Any]) -> str:
    task, index = job["task_id"], job["map_index"]
    return task if index < 0 else f"{task}[{index}]"


def _run_id(api: Any, options: argparse.Namespace) -> str:
    if options.dag_run != "latest":
        return str(options.dag_run)
    runs = api.api("GET", f"/dags/{quote(options.dag)}/dagRuns", order_by="-run_after", limit=1)["dag_runs"]
    if not runs:
        raise InvalidInputError("RUN", "latest", f"the id of a run ({options.dag} has no runs)")
    return str(runs[0]["dag_run_id"])


def _connect(options: argparse.Namespace) -> Any:
    from paceline.airflow.api import AirflowApi

    token = os.environ.get("PACELINE_AIRFLOW_TOKEN", "").strip()
    if token:
        if not (token.isascii() and token.isprintable()):  # httpx would print the token
            raise InvalidInputError("PACELINE_AIRFLOW_TOKEN", "(hidden)", "printable ASCII characters")
        return AirflowApi(options.url, {}, token=token)
    password = os.environ.get("PACELINE_AIRFLOW_PASSWORD")
    if password is None:
        try:
            password = getpass.getpass(f"Password of {options.user}: ")
        except EOFError:
            accepted = "a password, or a terminal to prompt for it"
            raise InvalidInputError("PACELINE_AIRFLOW_PASSWORD", None, accepted) from None
    return AirflowApi(options.url, {options.user: password}, user=options.user)


if __name__ == "__main__":
    sys.exit(main())
