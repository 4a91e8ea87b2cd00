"""``paceline simulate``: compares policies on one workload: a file, a generated one, or an Airflow's past trainings."""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError
from paceline.extras import require
from paceline.installed import POLICIES, installed

if TYPE_CHECKING:
    from paceline.allocate import Node, Policy
    from paceline.simulate.cluster import Arrival, SimulationResult
    from paceline.simulate.past import PastJob

_HEADINGS = (
    "POLICY",
    "DONE",
    "ON TIME",
    "REJECTED",
    "ACCEPTED LATE",
    "QUEUED",
    "TOTAL",
    "IN USE",
    "CHANGES",
    "COST",
    "TOOK",
)
_MODELARTS: Mapping[str, Mapping[str, Any]] = {
    "modelarts": {},
    "modelarts-all": {"all_jobs": True},
    "modelarts-deadlines": {"deadlines": (1.0, 3.0)},
}
_SYNTHETIC = (*_MODELARTS, "andreas-small", "andreas-large")
_NODES = 100


def add_command(
    commands: Any,
    parents: Sequence[argparse.ArgumentParser],
    read_past_jobs: Callable[[argparse.Namespace], list[PastJob]],
) -> None:
    """Add the ``simulate`` command to the subparsers of ``paceline``.

    The ``parents`` have the options with which ``read_past_jobs`` reads an Airflow's trainings, and ``--from-airflow``.
    """
    simulate = commands.add_parser(
        "simulate",
        parents=parents,
        help="simulate a workload on a cluster under several policies",
        description="Simulate a workload on a cluster, once under each policy, and compare the results.",
    )
    simulate.add_argument(
        "trace",
        metavar="TRACE",
        nargs="?",
        help="a CSV file, of past trainings (--export) or with the published columns, or a generated workload: "
        f"{', '.join(_SYNTHETIC)}. In files, times are in seconds, and an empty deadline is none",
    )
    simulate.add_argument(
        "--export",
        type=Path,
        metavar="FILE",
        help="write the past trainings as a CSV file, which TRACE accepts; without --nodes, simulate nothing",
    )
    simulate.add_argument(
        "--nodes",
        type=int,
        default=None,
        metavar="N",
        help="size of the pool: cores for trainings with cores, else devices; or number of ANDREAS nodes (default: "
        f"{_NODES}, but none for past trainings, of --from-airflow or a file: they need --nodes, unless only exported)",
    )
    simulate.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help="policy to compare, repeatable; another name than that of a policy lists all of them (edf, on_time; "
        "for past trainings, each policy that an arbiter accepts)",
    )
    simulate.add_argument(
        "--throughputs", type=Path, metavar="FOLDER", help="folder with a file MODEL.csv for each model"
    )
    simulate.add_argument(
        "--jobs",
        type=int,
        default=None,
        metavar="N",
        help="simulate only the first N jobs (all); for ANDREAS, generate N jobs (ten per node)",
    )
    simulate.add_argument("--seed", type=int, default=0, help="random seed (%(default)s)")
    simulate.add_argument(
        "--period", type=float, default=300.0, metavar="S", help="seconds between regular decisions (%(default)s)"
    )
    simulate.add_argument(
        "--pause", type=float, default=0.0, metavar="S", help="seconds without progress per change (%(default)s)"
    )
    simulate.add_argument(
        "--delay", type=float, default=0.0, metavar="S", help="seconds until added devices take effect (%(default)s)"
    )
    simulate.add_argument(
        "--snapshot",
        type=float,
        default=None,
        metavar="S",
        help="seconds between snapshots (default: one at each stop)",
    )
    simulate.add_argument(
        "--slot", type=float, default=60.0, metavar="S", help="length of ElasticFlow's slots in seconds (%(default)s)"
    )
    simulate.add_argument(
        "--elasticflow-overhead",
        action="store_true",
        help="at each decision, stop all running jobs for the time that ElasticFlow's simulator counts",
    )
    simulate.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the results as JSON")
    simulate.add_argument(
        "--outcomes",
        type=Path,
        default=None,
        metavar="FILE",
        help="write a CSV file with the times of each job, in seconds after the first arrival, under each policy",
    )
    simulate.add_argument(
        "--picture", type=Path, default=None, metavar="FILE", help="plot queue, device use and finished jobs over time"
    )
    simulate.set_defaults(run=_simulate, read_past_jobs=read_past_jobs)


@dataclass(frozen=True)
class _Workload:
    """Jobs and nodes. A device of the nodes is ``unit`` devices or cores of the pool. ``past``: jobs of an Airflow."""

    arrivals: list[Arrival]
    nodes: list[Node]
    pue: float = 1.0
    unit: float = 1.0
    past: bool = False

    @property
    def devices(self) -> float:
        return round(self.unit * sum(node.devices for node in self.nodes), 6)

    def arrivals_for(self, policy: Policy) -> list[Arrival]:
        """Return the jobs with the weights that an arbiter with this policy would give them."""
        if not self.past or policy.uses_priority:
            return self.arrivals
        return [replace(one, weight=1.0) for one in self.arrivals]


def _simulate(args: argparse.Namespace) -> int:
    require("worker", "numpy", "scipy", "tqdm", *(["matplotlib"] if args.picture else []))
    from tqdm import tqdm

    from paceline.simulate.cluster import ElasticFlowOverhead, Friction, JobOutcome, Simulation
    from paceline.simulate.past import write_jobs

    friction = Friction(
        delay_s=args.delay,
        pause_s=args.pause,
        snapshot_every_s=args.snapshot,
        rounds=ElasticFlowOverhead(args.slot) if args.elasticflow_overhead else None,
    )
    policies = {name: _make_policy(name, args) for name in args.policy or ()}
    _check_source(args)
    past = _past_jobs(args)
    if args.export:
        _prepare_outputs(args)
        write_jobs(past, args.export)
        print(f"{args.export}: {_counted(past)}")
        if args.nodes is None:
            return 0
    workload = _workload_of(past, args) if past else _workload(args)
    policies = policies or _default_policies(args, past=bool(past))
    _prepare_outputs(args)
    results, durations_s = [], []
    outcomes: list[tuple[object, ...]] = []
    total = len(workload.arrivals) * len(policies)
    with tqdm(total=total, unit="job", leave=False, disable=None) as bar:  # None: only on a terminal
        for name, policy in policies.items():
            bar.set_description(name)
            began_s = time.perf_counter()
            departed: list[JobOutcome] = []
            simulation = Simulation(
                workload.arrivals_for(policy),
                workload.nodes,
                policy,
                friction=friction,
                period_s=args.period,
                pue=workload.pue,
                on_outcome=departed.append if args.outcomes else None,
            )
            result = simulation.run(bar.update)
            results.append(replace(result.in_devices(workload.unit), policy=name))
            durations_s.append(time.perf_counter() - began_s)
            outcomes += [(name, *outcome) for outcome in departed]
    source = args.trace or "past trainings"
    unit = args.unit if args.from_airflow else "devices"
    unit = unit.removesuffix("s") if workload.devices == 1 else unit
    if args.from_airflow:
        print(f"{_counted(past)} on {workload.devices:g} {unit}")
    print(table(results, workload.devices, durations_s))
    if args.json:
        args.json.write_text(json.dumps([result.to_dict() for result in results], indent=1) + "\n")
    if args.outcomes:
        with args.outcomes.open("w", newline="") as file:
            csv.writer(file).writerows([("policy", *JobOutcome._fields), *outcomes])
    if args.picture:
        from paceline.simulate.cluster.picture import draw

        print(draw(results, workload.devices, args.picture, title=f"{source}, {workload.devices:g} {unit}"))
    return 0


def _prepare_outputs(args: argparse.Namespace) -> None:
    """Check before a long simulation that its results can be written; create missing folders."""
    names = ("export", "json", "outcomes", "picture")
    for field, path in ((f"--{name}", getattr(args, name)) for name in names):
        if path is None:
            continue
        if path == args.picture:
            from matplotlib.backend_bases import FigureCanvasBase

            formats = FigureCanvasBase.get_supported_filetypes()
            if path.suffix[1:].lower() not in formats:
                raise InvalidInputError(field, str(path), f"a file with a suffix out of {', '.join(sorted(formats))}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
        except OSError as error:
            raise InvalidInputError(field, str(path), f"a file that can be written ({error.strerror})") from None


def _default_policies(args: argparse.Namespace, *, past: bool) -> dict[str, Policy]:
    if not past:
        return {name: _make_policy(name, args) for name in ("edf", "on_time")}
    policies = {name: _make_policy(name, args) for name in installed(POLICIES)}
    return {name: policy for name, policy in policies.items() if policy.shares_pool}


def _make_policy(name: str, args: argparse.Namespace) -> Policy:
    from paceline.allocate import make_policy

    move_s = args.pause + (args.snapshot or 0.0) / 2
    times = {"change_s": args.pause, "period_s": args.period, "slot_s": args.slot, "move_s": move_s}
    return make_policy(name, "--policy", seed=args.seed, **times)


def _check_source(args: argparse.Namespace) -> None:
    if args.from_airflow == (args.trace is not None):
        raise InvalidInputError("TRACE", args.trace, "a file or the name of a workload, or else --from-airflow")
    if args.export and not args.from_airflow:
        raise InvalidInputError("--export", str(args.export), "--from-airflow, whose trainings it writes")
    if args.nodes is None and args.from_airflow and not args.export:
        raise InvalidInputError("--nodes", None, f"the number of {args.unit} in the pool, or --export")
    for name, value in (("--nodes", args.nodes), ("--jobs", args.jobs)):
        if value is not None and value < 1:
            raise InvalidInputError(name, value, "1 or more")


def _past_jobs(args: argparse.Namespace) -> list[PastJob]:
    """Return the past trainings of an Airflow, or of a file that has been exported from one; none for other files."""
    from paceline.simulate.past import has_past_jobs, read_jobs

    if args.from_airflow:
        jobs: list[PastJob] = args.read_past_jobs(args)
    else:
        file = Path(args.trace)
        jobs = read_jobs(file) if args.trace not in _SYNTHETIC and file.is_file() and has_past_jobs(file) else []
    return jobs[: args.jobs]


def _counted(jobs: Sequence[PastJob]) -> str:
    return "1 past training" if len(jobs) == 1 else f"{len(jobs)} past trainings"


def _workload_of(jobs: Sequence[PastJob], args: argparse.Namespace) -> _Workload:
    from paceline.allocate import Node
    from paceline.simulate.past import common_unit

    if args.nodes is None:
        raise InvalidInputError("--nodes", None, "the number of cores or devices in the pool")
    unit = common_unit(jobs, args.nodes)
    arrivals = [job.to_arrival(args.nodes, unit) for job in jobs]
    return _Workload(arrivals, [Node("pool", round(args.nodes / unit))], unit=unit, past=True)


def _workload(args: argparse.Namespace) -> _Workload:
    """Return the jobs and the nodes of a published or generated workload."""
    from paceline.allocate import Node
    from paceline.simulate.cluster.generate import modelarts_workload
    from paceline.simulate.cluster.heterogeneous import PUE, heterogeneous_workload
    from paceline.simulate.cluster.traces import read_throughputs, read_trace, shifted_arrival

    number = args.nodes or _NODES
    if args.trace in ("andreas-small", "andreas-large"):
        jobs = args.jobs or 10 * number
        arrivals, nodes = heterogeneous_workload(
            nodes=number, jobs=jobs, mix=args.trace.removeprefix("andreas-"), seed=args.seed
        )
        first_s = arrivals[0].arrives_s
        return _Workload([shifted_arrival(one, -first_s) for one in arrivals], nodes, PUE)
    pool = [Node("pool", number)]
    if args.trace in _MODELARTS:
        arrivals = modelarts_workload(args.seed, **_MODELARTS[args.trace])
        if args.jobs and args.jobs > len(arrivals):
            raise InvalidInputError("--jobs", args.jobs, f"at most {len(arrivals)}, the jobs of {args.trace}")
        return _Workload(arrivals[: args.jobs], pool)
    file = Path(args.trace)
    if not file.is_file():
        raise InvalidInputError("TRACE", args.trace, f"a file, or one of {', '.join(_SYNTHETIC)}")
    if args.throughputs is None:
        raise InvalidInputError("--throughputs", None, "a folder with the throughputs of the models in the trace")
    return _Workload(list(read_trace(file, read_throughputs(args.throughputs), jobs=args.jobs)), pool)


def table(results: Sequence[SimulationResult], devices: float, durations_s: Sequence[float]) -> str:
    """Return the results as a text table; ``ACCEPTED LATE`` is ``SimulationResult.accepted_late``."""
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for result, seconds in zip(results, durations_s, strict=True):
        used = result.device_s / (devices * result.ended_s) if result.ended_s else 0.0
        rows.append(
            (
                result.policy,
                f"{result.done} of {result.jobs}",
                f"{result.deadlines_met_pct:.1f} %" if result.with_deadline else "-",
                str(result.rejected) if result.rejected else "-",
                str(result.accepted_late) if result.with_deadline else "-",
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
    """Format a duration.

    >>> _duration(59.4), _duration(90), _duration(7500)
    ('59 s', '1.5 min', '2.1 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
