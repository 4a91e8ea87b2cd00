"""``paceline fleet check``: connect to each machine's engine and compare it with the fleet file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.fleet import EngineCheck, Fleet, Machine

_HEADINGS = ("MACHINE", "KIND", "TIER", "ENGINE", "CORES", "MEMORY", "")


def add_command(commands: Any) -> None:
    """Add ``paceline fleet`` to the subparsers."""
    fleet = commands.add_parser("fleet", help="check the machines of a fleet")
    actions = fleet.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser("check", help="connect to every machine's engine and compare it with the fleet file")
    check.add_argument("file", metavar="FILE", help="fleet file in YAML")
    check.add_argument(
        "--image", default=None, help="image that every engine must have, such as paceline-trainer:latest"
    )
    check.set_defaults(run=_run_check)


def _run_check(options: argparse.Namespace) -> int:
    from paceline.fleet import check, load

    fleet = load(options.file)
    found = list(check(fleet, _connect, options.image))
    print(format_table(fleet, found))
    return 0 if all(one.ok for one in found) else 1


def _connect(machine: Machine) -> Any:
    """Connect to a machine's engine, through its Airflow connection if it has one."""
    from docker import APIClient

    from paceline.airflow.engine_connection import default_engine, engine_hook

    if machine.engine_conn_id is not None:
        return engine_hook(machine.engine_conn_id).api_client
    return APIClient(base_url=default_engine(), version="auto")


def format_table(fleet: Fleet, found: list[EngineCheck]) -> str:
    """Format the results of the check as a table."""
    machines = {machine.name: machine for machine in (*fleet.machines, fleet.parameter_server)}
    rows = [_HEADINGS]
    for one in found:
        machine = machines[one.machine]
        rows.append(
            (
                one.machine,
                machine.kind,
                machine.tier,
                one.version or "-",
                "-" if one.cores is None else str(one.cores),
                "-" if one.memory_gib is None else f"{one.memory_gib:g} GiB",
                "ok" if one.ok else "; ".join(one.problems),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
