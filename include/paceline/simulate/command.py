"""``paceline simulate``: compares policies on one workload."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from paceline.allocate import Node, Policy
    from paceline.simulate.cluster import Arrival, SimulationResult

_HEADINGS = ("POLICY", "DONE", "ON TIME", "QUEUED", "TOTAL", "IN USE", "CHANGES", "COST", "TOOK")
_POLICIES = ("fifo", "edf", "ps", "greedy", "milp", "rg", "growing", "on_time")
_SYNTHETIC = ("modelarts", "modelarts-all", "andreas-small", "andreas-large")


def add_to(commands: Any) -> None:
    """Add the command to the subparsers of a parser."""
    simulate = commands.add_parser(
        "simulate",
        help="simulate a workload on a cluster under several policies",
        description="Simulate a workload on a cluster, once under each policy, and compare the results.",
    )
    simulate.add_argument(
        "trace", metavar="TRACE", help=f"a CSV file, or a generated workload: {', '.join(_SYNTHETIC)}"
    )
    simulate.add_argument(
        "--nodes", type=int, default=100, help="devices of the pool, or ANDREAS's nodes (%(default)s)"
    )
    simulate.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"repeatable: {', '.join(_policies())} (edf, on_time)",
    )
    simulate.add_argument("--throughputs", type=Path, metavar="FOLDER", help="MODEL.csv for each model of a trace")
    simulate.add_argument("--jobs", type=int, default=None, help="number of jobs to read or generate")
    simulate.add_argument("--seed", type=int, default=0, help="random seed (%(default)s)")
    simulate.add_argument(
        "--period", type=float, default=300.0, metavar="S", help="seconds between regular decisions (%(default)s)"
    )
    simulate.add_argument(
        "--pause", type=float, default=0.0, metavar="S", help="seconds without progress per change (%(default)s)"
    )
    simulate.add_argument(
        "--delay", type=float, default=0.0, metavar="S", help="seconds until added devices count (%(default)s)"
    )
    simulate.add_argument(
        "--snapshot", type=float, default=None, metavar="S", help="seconds between snapshots (saved on each stop)"
    )
    simulate.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the results as JSON")
    simulate.add_argument(
        "--picture", type=Path, default=None, metavar="FILE", help="plot of queue, use and finished jobs over time"
    )
    simulate.set_defaults(run=_simulate, url="")


def _policies() -> dict[str, Callable[[argparse.Namespace], Policy]]:
    """Return a constructor for each policy name."""
    from paceline.allocate import Greedy, Growing, OnTime, RandomizedGreedy, RollingHorizon, edf, fifo, priority

    return {
        "fifo": lambda chosen: fifo(),
        "edf": lambda chosen: edf(),
        "ps": lambda chosen: priority(),
        "greedy": lambda chosen: Greedy(),
        "milp": lambda chosen: RollingHorizon(period_s=chosen.period),
        "rg": lambda chosen: RandomizedGreedy(seed=chosen.seed),
        "growing": lambda chosen: Growing(),
        "on_time": lambda chosen: OnTime(change_s=chosen.pause),
    }


@dataclass(frozen=True)
class _Workload:
    arrivals: list[Arrival]
    nodes: list[Node]
    pue: float = 1.0

    @property
    def devices(self) -> int:
        return sum(node.devices for node in self.nodes)


def _simulate(chosen: argparse.Namespace) -> int:
    from tqdm import tqdm

    from paceline.simulate.cluster import Friction, Simulation

    names = chosen.policy or ["edf", "on_time"]
    for name in names:
        if name not in _POLICIES:
            raise InvalidInputError("--policy", name, f"one of {', '.join(_POLICIES)}")
    makers = _policies()
    case = _workload(chosen)
    friction = Friction(delay_s=chosen.delay, pause_s=chosen.pause, snapshot_every_s=chosen.snapshot)
    results, took_s = [], []
    with tqdm(total=len(case.arrivals) * len(names), unit="job", leave=False) as bar:
        for name in names:
            bar.set_description(name)
            began_s = time.perf_counter()
            simulation = Simulation(
                case.arrivals, case.nodes, makers[name](chosen), friction=friction, period_s=chosen.period, pue=case.pue
            )
            results.append(simulation.run(bar.update))
            took_s.append(time.perf_counter() - began_s)
    print(table(results, case.devices, took_s))
    if chosen.json:
        chosen.json.write_text(json.dumps([result.to_dict() for result in results], indent=1) + "\n")
    if chosen.picture:
        from paceline.simulate.cluster.picture import draw

        print(draw(results, case.devices, chosen.picture, title=f"{chosen.trace}, {case.devices} devices"))
    return 0


def _workload(chosen: argparse.Namespace) -> _Workload:
    """Return the jobs and the nodes."""
    from paceline.allocate import Node
    from paceline.simulate.cluster.generate import modelarts
    from paceline.simulate.cluster.heterogeneous import PUE, heterogeneous

    for name, value in (("--nodes", chosen.nodes), ("--jobs", chosen.jobs)):
        if value is not None and value < 1:
            raise InvalidInputError(name, value, "1 or more")
    if chosen.trace in ("andreas-small", "andreas-large"):
        jobs = chosen.jobs or 10 * chosen.nodes
        arrivals, nodes = heterogeneous(
            nodes=chosen.nodes, jobs=jobs, mix=chosen.trace.removeprefix("andreas-"), seed=chosen.seed
        )
        return _Workload(list(arrivals), list(nodes), PUE)
    pool = [Node("pool", chosen.nodes)]
    if chosen.trace in ("modelarts", "modelarts-all"):
        return _Workload(list(modelarts(chosen.seed, all_jobs=chosen.trace.endswith("all")))[: chosen.jobs], pool)
    from paceline.simulate.cluster.traces import read, throughputs

    file = Path(chosen.trace)
    if not file.is_file():
        raise InvalidInputError("TRACE", chosen.trace, f"a file, or one of {', '.join(_SYNTHETIC)}")
    if chosen.throughputs is None:
        raise InvalidInputError("--throughputs", None, "a folder with the throughputs of the models in the trace")
    return _Workload(list(read(file, throughputs(chosen.throughputs), jobs=chosen.jobs)), pool)


def table(results: Sequence[SimulationResult], devices: int, took_s: Sequence[float]) -> str:
    """Return the results as a text table."""
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for result, seconds in zip(results, took_s, strict=True):
        used = result.device_s / (devices * result.ended_s) if result.ended_s else 0.0
        rows.append(
            (
                result.policy,
                f"{result.done} of {result.jobs}",
                f"{result.deadlines_met_pct:.1f} %" if result.with_deadline else "-",
                _duration(result.mean_queue_s),
                _duration(result.mean_total_s),
                f"{100 * used:.0f} %",
                str(result.changes),
                f"{result.total_cost:.2f}" if result.energy_cost else "-",
                f"{seconds:.1f} s",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _duration(seconds: float) -> str:
    """
    >>> _duration(59.4), _duration(90), _duration(7500)
    ('59 s', '1.5 min', '2.1 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
