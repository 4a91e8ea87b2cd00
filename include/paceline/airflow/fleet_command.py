"""``paceline fleet check``: is everybody there, and as described?"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.fleet.check import Reached
    from paceline.fleet.machine import Fleet, Machine

_HEADINGS = ("MACHINE", "KIND", "TIER", "ENGINE", "CORES", "MEMORY", "")


def add_to(commands: Any) -> None:
    """Add the command to a parser's."""
    fleet = commands.add_parser("fleet", help="the machines that may train")
    actions = fleet.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser("check", help="reach every engine and compare it with its description")
    check.add_argument("file", metavar="FILE", help="the fleet, in YAML")
    check.add_argument("--image", default=None, help="an image that has to be there, paceline-trainer:latest say")
    check.set_defaults(run=_check)


def _check(chosen: argparse.Namespace) -> int:
    from paceline.fleet.check import check
    from paceline.fleet.file import load

    fleet = load(chosen.file)
    found = list(check(fleet, _connect, chosen.image))
    print(table(fleet, found))
    return 0 if all(one.sound for one in found) else 1


def _connect(worker: Machine) -> Any:
    """A client of a worker's engine, through its Airflow connection."""
    from docker import APIClient

    from paceline.airflow.engine_connection import engine_hook

    if worker.engine_conn_id is not None:
        return engine_hook(worker.engine_conn_id).api_client
    here = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    return APIClient(base_url=here, version="auto")


def table(fleet: Fleet, found: list[Reached]) -> str:
    """What was found, for people to read."""
    described = {worker.name: worker for worker in (*fleet.machines, fleet.parameter_server)}
    rows = [_HEADINGS]
    for one in found:
        worker = described[one.worker]
        rows.append(
            (
                one.worker,
                worker.kind,
                worker.tier,
                one.version or "-",
                "-" if one.cores is None else str(one.cores),
                "-" if one.memory_gib is None else f"{one.memory_gib:g} GiB",
                "ok" if one.sound else "; ".join(one.problems),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
