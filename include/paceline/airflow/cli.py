"""The ``paceline`` command: look at running trainings and change their deadlines, through Airflow's REST API.

It uses the login of whoever runs it, so Airflow decides what that person may do.
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paceline import __version__
from paceline.airflow import clean
from paceline.airflow import fleet_command as fleet
from paceline.contract import DEADLINE, PACE, Deadline, PaceSample, StoredDeadline
from paceline.errors import InvalidInputError, PacelineError
from paceline.simulate import command as simulate

if TYPE_CHECKING:
    from paceline.airflow.api import AirflowApi

_PAGE = 100  # what Airflow gives at most, unless it is told otherwise
_HEADINGS = ("DAG", "RUN", "TASK", "STATE", "PROGRESS", "SETPOINT", "CORES", "DEADLINE", "FORECAST", "SLACK")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, or 1 with one line on standard error that says what is wrong."""
    chosen = _parser().parse_args(arguments)
    import httpx

    try:
        return int(chosen.run(chosen))
    except httpx.TransportError as error:
        print(f"paceline: --url: got {chosen.url!r}, expected an Airflow that answers ({error})", file=sys.stderr)
        return 1
    except PacelineError as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="paceline", description="Watch and steer trainings that Airflow runs.")
    parser.add_argument("--version", action="version", version=__version__)
    login = argparse.ArgumentParser(add_help=False)
    login.add_argument(
        "--url",
        default=os.environ.get("PACELINE_AIRFLOW_URL", "http://localhost:8080"),
        help="where Airflow is (PACELINE_AIRFLOW_URL; %(default)s)",
    )
    login.add_argument(
        "--user",
        default=os.environ.get("PACELINE_AIRFLOW_USER", "admin"),
        help="who you are there (PACELINE_AIRFLOW_USER; %(default)s); the password comes from "
        "PACELINE_AIRFLOW_PASSWORD or is asked for, a token from PACELINE_AIRFLOW_TOKEN takes its place",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    status = commands.add_parser("status", parents=[login], help="the trainings that run now")
    status.add_argument("dag", nargs="?", default="~", metavar="DAG", help="only this DAG")
    status.set_defaults(run=_status)

    deadline = commands.add_parser("deadline", help="read or change the deadline of a running training")
    actions = deadline.add_subparsers(required=True, metavar="ACTION")
    show = actions.add_parser("show", parents=[login], help="print the deadline as it was set last")
    change = actions.add_parser("set", parents=[login], help="change the deadline")
    for action, run in ((show, _show), (change, _set)):
        action.add_argument("dag", metavar="DAG")
        action.add_argument("dag_run", metavar="RUN", help='id of the DAG run, or "latest"')
        action.add_argument("task", metavar="TASK")
        action.add_argument("--map-index", type=int, default=-1, help="which of several mapped tasks")
        action.set_defaults(run=run)
    change.add_argument("value", metavar="DEADLINE", help='"15m", "PT15M", seconds, or "2030-01-31T18:00:00Z"')
    clean.add_to(commands, [login], _connect)
    fleet.add_to(commands)
    simulate.add_to(commands)
    return parser


def _status(chosen: argparse.Namespace) -> int:
    api = _connect(chosen)
    rows = []
    for task in _running(api, chosen.dag):
        place = task["dag_id"], task["dag_run_id"], task["task_id"]
        pace = PaceSample.read(api.task_state(*place, PACE, map_index=task["map_index"]))
        if pace is not None:
            rows.append((*place, *_describe(pace)))
    if not rows:
        print("No training runs now.")
        return 0
    widths = [max(len(row[column]) for row in (_HEADINGS, *rows)) for column in range(len(_HEADINGS))]
    for row in (_HEADINGS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _running(api: AirflowApi, dag: str) -> Iterator[dict[str, Any]]:
    """The tasks that run, a page of them at a time."""
    seen, total = 0, 1
    while seen < total:
        page = api.api("GET", f"/dags/{dag}/dagRuns/~/taskInstances", state="running", limit=_PAGE, offset=seen)
        yield from page["task_instances"]
        seen, total = seen + _PAGE, page["total_entries"]


def _describe(pace: PaceSample) -> tuple[str, ...]:
    """One training in words, from the ``pace`` it published last."""
    forecast_s, deadline_s = pace.forecast_s, pace.deadline_s
    if forecast_s is None:
        slack = "not known yet"
    elif deadline_s is None:
        slack = "as fast as its budget allows"
    elif not pace.feasible and pace.earliest_s is not None:
        slack = f"cannot be met, {pace.earliest_s - deadline_s:.0f} s late at best"
    else:
        spare_s = deadline_s - forecast_s
        slack = f"{spare_s:.0f} s to spare" if spare_s >= 0 else f"{-spare_s:.0f} s behind, catching up"
    return (
        pace.state,
        f"{pace.progress_pct:.1f} %",
        f"{pace.setpoint_pct:.1f} %" if deadline_s is not None else "-",
        f"{pace.devices:.2f}",
        "-" if deadline_s is None else f"{deadline_s:.0f} s",
        "-" if forecast_s is None else f"{forecast_s:.0f} s",
        slack,
    )


def _show(chosen: argparse.Namespace) -> int:
    api = _connect(chosen)
    value = api.task_state(*_place(api, chosen), DEADLINE, map_index=chosen.map_index)
    if value is None:
        raise _not_running(chosen)
    print(StoredDeadline.read(value).value or "none")
    return 0


def _set(chosen: argparse.Namespace) -> int:
    from paceline.airflow.api import AirflowApiError

    Deadline.parse(chosen.value)
    api = _connect(chosen)
    dag, run, task = _place(api, chosen)
    before = api.task_state(dag, run, task, DEADLINE, map_index=chosen.map_index)
    if before is None:
        raise _not_running(chosen)
    _must_be_ahead(chosen.value, PaceSample.read(api.task_state(dag, run, task, PACE, map_index=chosen.map_index)))
    try:
        api.set_task_state(dag, run, task, DEADLINE, chosen.value, map_index=chosen.map_index)
    except AirflowApiError as error:
        if error.status == 404:
            raise _not_running(chosen) from None
        raise
    was = StoredDeadline.read(before).value or "none"
    print(f"Deadline of {task} in {run}: {was} -> {chosen.value}. The task takes it within two control periods.")
    return 0


def _must_be_ahead(value: str, pace: PaceSample | None) -> None:
    """Refuse what the task would refuse: a deadline that has passed by its newest sample."""
    if pace is None:
        return
    if Deadline.parse(value).seconds_after(pace.origin) <= pace.t_s:
        raise InvalidInputError("deadline", value, f"a time that is still to come ({pace.t_s:.0f} s have passed)")


def _place(api: Any, chosen: argparse.Namespace) -> tuple[str, str, str]:
    run = chosen.dag_run
    if run == "latest":
        runs = api.api("GET", f"/dags/{chosen.dag}/dagRuns", order_by="-run_after", limit=1)["dag_runs"]
        if not runs:
            raise InvalidInputError("RUN", run, f"a run of {chosen.dag}, which has none")
        run = runs[0]["dag_run_id"]
    return chosen.dag, run, chosen.task


def _not_running(chosen: argparse.Namespace) -> InvalidInputError:
    return InvalidInputError("TASK", chosen.task, f"a training task of {chosen.dag} {chosen.dag_run} that runs now")


def _connect(chosen: argparse.Namespace) -> Any:
    from paceline.airflow.api import AirflowApi

    token = os.environ.get("PACELINE_AIRFLOW_TOKEN")
    if token:
        return AirflowApi(chosen.url, {}, token=token)
    password = os.environ.get("PACELINE_AIRFLOW_PASSWORD")
    if password is None:
        try:
            password = getpass.getpass(f"Password of {chosen.user}: ")
        except EOFError:
            accepted = "a password, or a terminal to ask for it"
            raise InvalidInputError("PACELINE_AIRFLOW_PASSWORD", None, accepted) from None
    return AirflowApi(chosen.url, {chosen.user: password}, user=chosen.user)


if __name__ == "__main__":
    sys.exit(main())
