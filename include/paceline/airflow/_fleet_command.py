"""``paceline fleet check``: check that the machines can train together, and that each engine matches the fleet file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from paceline.fleet import EngineCheck, Fleet, Machine
    from paceline.runtime.kubernetes import KubernetesRuntime

_HEADINGS = ("MACHINE", "KIND", "TIER", "ENGINE", "CORES", "MEMORY", "")


def add_command(commands: Any) -> None:
    """Add ``paceline fleet`` to the subparsers."""
    fleet = commands.add_parser("fleet", help="check the machines of a fleet")
    actions = fleet.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser("check", help="check the fleet file, and that each engine is reachable and matches it")
    check.add_argument("file", metavar="FILE", help="fleet file (YAML)")
    check.add_argument(
        "--image", default=None, help="image that every engine must have, such as paceline-trainer:latest"
    )
    check.add_argument(
        "--kubernetes-conn-id",
        default="kubernetes_default",
        metavar="ID",
        help="connection to the cluster, for nodes whose machines name none (kubernetes_default, else $KUBECONFIG)",
    )
    check.set_defaults(run=_run_check)


def _run_check(options: argparse.Namespace) -> int:
    from paceline.fleet import check, check_nodes, load

    fleet = load(options.file)
    faults = list(_faults(fleet))
    if fleet.is_of_nodes:
        if options.image is not None:
            accepted = "no image for a fleet of nodes: a pod's start tells whether the cluster has it"
            raise InvalidInputError("--image", options.image, accepted)
        clusters = {machine.kubernetes_conn_id for machine in fleet.all_machines}
        results = list(check_nodes(fleet, {one: _nodes(one or options.kubernetes_conn_id) for one in clusters}))
    else:
        results = list(check(fleet, _connect, options.image))
    print(format_table(fleet, results))
    in_table = {problem for result in results for problem in result.problems}
    for fault in map(str, faults):
        if fault not in in_table:
            print(fault)
    return 1 if faults or not all(result.ok for result in results) else 0


def _faults(fleet: Fleet) -> Iterator[InvalidInputError]:
    from paceline.airflow.engine_connection import fleet_key
    from paceline.fleet.faults import measuring_faults, training_faults

    yield from training_faults(fleet)
    yield from measuring_faults(fleet)
    if fleet.key_conn_id is not None:
        try:
            fleet_key(fleet.key_conn_id)
        except InvalidInputError as error:
            yield error


def _connect(machine: Machine) -> Any:
    """Connect to a machine's engine, through the machine's Airflow connection if the fleet file names result."""
    from paceline.airflow.engine_connection import default_client, engine_hook
    from paceline.fleet.faults import unreachable

    if (fault := unreachable(machine)) is not None:
        raise fault
    if machine.engine_conn_id is not None:
        return engine_hook(machine.engine_conn_id).api_client
    return default_client()


def _nodes(kubernetes_conn_id: str) -> list[dict[str, Any]]:
    from paceline.airflow.runtimes import Kubernetes

    runtime: KubernetesRuntime = Kubernetes(kubernetes_conn_id=kubernetes_conn_id).open()
    return runtime.nodes()


def format_table(fleet: Fleet, results: list[EngineCheck]) -> str:
    """Format the results of ``check`` as a table."""
    machines = {machine.name: machine for machine in fleet.all_machines}
    rows = [_HEADINGS]
    for result in results:
        machine = machines[result.machine]
        rows.append(
            (
                result.machine,
                machine.kind,
                machine.tier,
                result.version or "-",
                "-" if result.cores is None else f"{result.cores:g}",
                "-" if result.memory_gib is None else f"{result.memory_gib:g} GiB",
                "ok" if result.ok else "; ".join(result.problems),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
