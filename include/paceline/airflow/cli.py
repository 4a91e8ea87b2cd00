"""The ``paceline`` command: list running jobs and change their deadlines, through Airflow's REST API.

The command logs in as the user, so Airflow's permissions apply.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from paceline import __version__
from paceline.airflow import _clean as clean
from paceline.airflow import _fleet_command as fleet
from paceline.airflow import _model_command as model
from paceline.contract import DEADLINE, PACE, PaceSample, StoredDeadline
from paceline.errors import InvalidInputError, PacelineError
from paceline.simulate import command as simulate

if TYPE_CHECKING:
    from paceline.airflow.api import AirflowApi

_PAGE_SIZE = 100  # Airflow's default maximum page size; an installation may return smaller pages
_HEADINGS = ("DAG", "RUN", "TASK", "STATE", "PROGRESS", "SETPOINT", "CORES", "DEADLINE", "FORECAST", "SLACK")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code: 0, 1 after an error, or 130 after an interrupt."""
    options = _parser().parse_args(arguments)
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

    status = commands.add_parser("status", parents=[login], help="list the running training jobs")
    status.add_argument("dag", nargs="?", default="~", metavar="DAG", help="list only jobs of this DAG")
    status.add_argument("--json", action="store_true", help="print the newest sample of each job as JSON")
    status.set_defaults(run=_status)

    deadline = commands.add_parser("deadline", help="read or change the deadline of a running training job")
    actions = deadline.add_subparsers(required=True, metavar="ACTION")
    show = actions.add_parser("show", parents=[login], help="print the deadline as the user wrote it")
    change = actions.add_parser("set", parents=[login], help="change the deadline")
    for action, run in ((show, _show_deadline), (change, _set_deadline)):
        action.add_argument("dag", metavar="DAG")
        action.add_argument("dag_run", metavar="RUN", help='id of the DAG run, or "latest"')
        action.add_argument("task", metavar="TASK", help="id of a task, or of a task group such as that of a fleet")
        action.add_argument("--map-index", type=int, default=-1, help="index of a mapped task")
        action.set_defaults(run=run)
    change.add_argument("value", metavar="DEADLINE", help='"15m", "PT15M", seconds, "2030-01-31T18:00:00Z", or "none"')
    clean.add_command(commands, [login], _connect)
    fleet.add_command(commands)
    model.add_command(commands, [login], _connect)
    simulate.add_command(commands)
    return parser


def _status(options: argparse.Namespace) -> int:
    api = _connect(options)
    jobs = []
    for task in _task_instances(api, options.dag, state=["running", "deferred"]):
        key = task["dag_id"], task["dag_run_id"], task["task_id"], task["map_index"]
        pace = PaceSample.read(api.task_state(*key[:3], PACE, map_index=key[3]))
        if pace is not None:
            jobs.append((key, pace))
    if options.json:
        names = ("dag_id", "run_id", "task_id", "map_index")
        print(json.dumps([dict(zip(names, key, strict=True), pace=pace.to_json()) for key, pace in jobs], indent=1))
        return 0
    rows = [(*key[:3], *_table_cells(pace)) for key, pace in jobs]
    if not rows:
        print("No training job is running.")
        return 0
    widths = [max(len(row[column]) for row in (_HEADINGS, *rows)) for column in range(len(_HEADINGS))]
    for row in (_HEADINGS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _task_instances(api: AirflowApi, dag: str, run: str = "~", **filters: str | list[str]) -> Iterator[dict[str, Any]]:
    """Yield the task instances of a run, or of all runs; request them page by page."""
    offset, total, path = 0, 1, f"/dags/{dag}/dagRuns/{quote(run, safe='~')}/taskInstances"
    while offset < total:
        page = api.api("GET", path, **filters, limit=_PAGE_SIZE, offset=offset)
        tasks, total = page["task_instances"], page["total_entries"]
        if not tasks:  # jobs have ended between two pages
            return
        yield from tasks
        offset += len(tasks)


def _table_cells(pace: PaceSample) -> tuple[str, ...]:
    """Format the newest sample of a job as table cells."""
    forecast_s, deadline_s = pace.forecast_s, pace.deadline_s
    if forecast_s is None:
        slack = "not known yet"
    elif deadline_s is None:
        slack = "as fast as its budget allows"
    elif not pace.feasible and pace.earliest_s is not None:
        slack = f"cannot be met, {pace.earliest_s - deadline_s:.0f} s late at best"
    else:
        slack_s = deadline_s - forecast_s
        slack = f"{slack_s:.0f} s" if slack_s >= 0 else f"{-slack_s:.0f} s behind, catching up"
    return (
        pace.state,
        f"{pace.progress_pct:.1f} %",
        f"{pace.setpoint_pct:.1f} %" if deadline_s is not None else "-",
        f"{pace.devices:.2f}",
        "-" if deadline_s is None else f"{deadline_s:.0f} s",
        "-" if forecast_s is None else f"{forecast_s:.0f} s",
        slack,
    )


def _show_deadline(options: argparse.Namespace) -> int:
    api = _connect(options)
    deadlines = _stored_deadlines(api, options, _run_id(api, options))
    for task, value in deadlines.items():
        text = StoredDeadline.read(value).value or "none"
        print(text if list(deadlines) == [(options.task, options.map_index)] else f"{_task_name(task)}: {text}")
    return 0


def _set_deadline(options: argparse.Namespace) -> int:
    from paceline.airflow.api import AirflowApiError

    deadline = StoredDeadline.read(options.value)
    deadline.parse(optional=True)
    api = _connect(options)
    run = _run_id(api, options)
    before = _stored_deadlines(api, options, run)
    for task, index in before:
        pace = PaceSample.read(api.task_state(options.dag, run, task, PACE, map_index=index))
        if pace is not None:  # reject what the task would reject too
            deadline.accept(pace.origin, pace.t_s, pace.deadline_in_force_s)
    changed = 0
    for key, value in before.items():
        task, index = key
        try:
            api.set_task_state(options.dag, run, task, DEADLINE, deadline.to_json(), map_index=index)
        except AirflowApiError as error:
            if error.status == 404:  # the task has just ended
                continue
            raise
        changed += 1
        old = StoredDeadline.read(value).value or "none"
        print(
            f"Deadline of {_task_name(key)} in {run}: {old} -> {options.value}. "
            "The task applies it within two control periods."
        )
    if not changed:
        raise _not_running_error(options)
    return 0


def _stored_deadlines(api: AirflowApi, options: argparse.Namespace, run: str) -> dict[tuple[str, int], Any]:
    """Return the deadlines of the running training tasks that the options name, by task id and map index.

    The options name a task, all instances of a mapped task, or a group of tasks, such as the one of a fleet.
    """

    def read(task: str, index: int) -> Any:
        return api.task_state(options.dag, run, task, DEADLINE, map_index=index)

    value = read(options.task, options.map_index)
    if value is not None:
        return {(options.task, options.map_index): value}
    group = [
        (task["task_id"], task["map_index"])
        for task in _task_instances(api, options.dag, run)
        if task["task_id"] == options.task or task["task_id"].startswith(f"{options.task}.")
    ]
    found = {key: value for key in sorted(group) if (value := read(*key)) is not None}
    if not found:
        raise _not_running_error(options)
    return found


def _task_name(key: tuple[str, int]) -> str:
    task, index = key
    return task if index < 0 else f"{task}[{index}]"


def _run_id(api: Any, options: argparse.Namespace) -> str:
    if options.dag_run != "latest":
        return str(options.dag_run)
    runs = api.api("GET", f"/dags/{options.dag}/dagRuns", order_by="-run_after", limit=1)["dag_runs"]
    if not runs:
        raise InvalidInputError("RUN", "latest", f"the id of a run ({options.dag} has no runs)")
    return str(runs[0]["dag_run_id"])


def _not_running_error(options: argparse.Namespace) -> InvalidInputError:
    return InvalidInputError("TASK", options.task, f"a running training task of run {options.dag_run} of {options.dag}")


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
